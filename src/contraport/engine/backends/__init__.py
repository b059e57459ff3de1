"""Backends: implementations of the passes over all pairs, and the choice among them."""
