"""Package of the tests, so that no installed package named `tests` is imported instead."""

TIMEOUT = 600.0
"""Limit in seconds for a process that hangs: on a busy machine a start alone can take a minute."""
