"""Cache of constant tensors, such as masks.

The cache is bounded in number and belongs to no object, so that objectives can be pickled and used by several threads.
Values are made outside of inference mode, so that they also serve calls that need a gradient. Nothing is cached under
`torch.compile`, within `torch.func` or with fake tensors. A value that was written to since is made anew: users can
reach patterns and targets from a plan, and a write to one would change every later call.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from operator import attrgetter
from typing import Generic, TypeVar

import torch
from torch import Tensor

CachedT = TypeVar("CachedT")

_get_version_counter = attrgetter("_version")  # torch counts the writes in place to a tensor there


class WriteDetectingCacheEntry(Generic[CachedT]):
    """Cached value that detects in-place changes of its tensors.

    Attributes:
        value: The cached value.
        is_temporary: Whether it was made in a trace or a transform, and must not be cached beyond it.
    """

    def __init__(self, value: CachedT) -> None:
        self.value = value
        self.tensors = [tensor for tensor in _iter_tensors(value) if not tensor.is_inference()]  # no counter
        self.versions = list(map(_get_version_counter, self.tensors))
        self.is_temporary = type(torch.empty(0)) is not Tensor or torch._C._are_functorch_transforms_active()

    @property
    def is_unmodified(self) -> bool:
        """True if no cached tensor was modified in place."""
        return list(map(_get_version_counter, self.tensors)) == self.versions


def _iter_tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _iter_tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _iter_tensors(getattr(value, field.name))


def cached_until_result_written(make: Callable[..., CachedT]) -> Callable[..., CachedT]:
    """Decorator that caches results until a cached tensor is written to.

    `lru_cache` would return a tensor that was written to, an inference tensor, or one that ended with a trace.
    """
    entries: dict[Hashable, WriteDetectingCacheEntry[CachedT]] = {}
    lock = threading.Lock()

    @wraps(make)
    def get(*key: Hashable) -> CachedT:
        if torch.compiler.is_compiling():
            return make(*key)
        entry = entries.get(key)
        # `is_unmodified` written out: this line is on the path of every small batch, where a call counts.
        if entry is not None and list(map(_get_version_counter, entry.tensors)) == entry.versions:
            return entry.value
        with torch.inference_mode(False), torch.no_grad():
            entry = WriteDetectingCacheEntry(make(*key))
        if not entry.is_temporary:
            with lock:
                if len(entries) >= 64:  # the oldest is dropped first
                    del entries[next(iter(entries))]
                entries[key] = entry
        return entry.value

    return get


@cached_until_result_written
def _cached_full(size: int, value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a cached vector, (size,), with all elements equal to `value`."""
    return torch.full((size,), value, dtype=dtype, device=device)


def constant_vector(size: int, value: float, like: Tensor) -> Tensor:
    """Return a cached vector, (size,), filled with one value.

    It has the dtype and device of `like`. Callers share it: do not write to it, and do not return it to users.
    """
    return _cached_full(size, value, like.dtype, like.device)


def traceable_log(size: int, like: Tensor) -> Tensor | float:
    """Return log(size) as a number, or under `torch.compile` as a tensor.

    A tensor lets the size stay symbolic.
    """
    if not torch.compiler.is_compiling():
        return math.log(size)
    return torch.full((), size, dtype=torch.float64, device=like.device).log().to(like.dtype)
