"""Backends: dense, tiled and CUDA implementations of the passes over all pairs, and the choice among them."""
