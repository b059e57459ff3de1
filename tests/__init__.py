"""A package, so that no installed package of this name is taken for it."""

TIMEOUT = 600.0
"""Limit in seconds for a process that hangs: on a busy machine a start alone can take a minute."""
