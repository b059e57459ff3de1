"""Simulation of a full disk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Limit the files of this process to a size in bytes: writing more fails, as on a full disk."""
    resource = pytest.importorskip("resource", reason="limits of a process are those of Unix")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
