"""Callbacks of the training loop, such as checkpoints, metrics and loggers."""
