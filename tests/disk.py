"""A disk that is full, for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a size in bytes: what is written beyond fails, as on a full disk."""
    resource = pytest.importorskip("resource", reason="limits of a process are those of Unix")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
