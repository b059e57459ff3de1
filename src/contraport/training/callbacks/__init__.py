"""Callbacks of the training loop: checkpoints, metrics, finite guard, progress, loggers."""
