"""What is the same in every call is made once: patterns of compared pairs, marginals, zeros.

What is kept is bounded in number, belongs to no object (so that objectives can be pickled and used by several threads),
and is made outside of inference mode, so that it serves calls with a gradient too. Under `torch.compile`, and under
tensors that stand for others, nothing is kept. What somebody has written to since is made anew: patterns and targets
can be reached from a plan, and a write to one would change every later call.
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

MOST_KEPT = 64
"""How many values of one function are kept, the last ones made."""

Value = TypeVar("Value")

_version = attrgetter("_version")


class CacheEntry(Generic[Value]):
    """A cached value, and the version of each of its tensors, which a write in place changes."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.tensors = list(_tensors(value))
        self.versions = list(map(_version, self.tensors))

    @property
    def intact(self) -> bool:
        """True if the value has not been written to since."""
        return list(map(_version, self.tensors)) == self.versions


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors in a value, within tuples and the fields of dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _tensors(getattr(value, each.name))


def remembered(make: Callable[..., Value]) -> Callable[..., Value]:
    """Let a function of hashable arguments remember what it has made."""
    kept: dict[Hashable, CacheEntry[Value]] = {}
    lock = threading.Lock()

    @wraps(make)
    def get(*key: Hashable) -> Value:
        if torch.compiler.is_compiling():
            return make(*key)
        entry = kept.get(key)
        if entry is not None and list(map(_version, entry.tensors)) == entry.versions:  # `intact`, without its call
            return entry.value
        with torch.inference_mode(False), torch.no_grad():
            value = make(*key)
            real = type(torch.empty(0)) is Tensor
        if real:
            with lock:
                if len(kept) >= MOST_KEPT:
                    del kept[next(iter(kept))]
                kept[key] = CacheEntry(value)
        return value

    return get


@remembered
def _full(size: int, value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((size,), value, dtype=dtype, device=device)


def constant(size: int, value: float, like: Tensor) -> Tensor:
    """Return a vector of one number, (size,), in the precision and on the device of another.

    Several callers share it: it must not be written to, nor be a part of what a caller gets.
    """
    return _full(size, value, like.dtype, like.device)


def log_size(size: int, like: Tensor) -> Tensor | float:
    """Return log(size), in a compiled graph as a tensor: a size may be a symbol there, which a number would fix."""
    if not torch.compiler.is_compiling():
        return math.log(size)
    return torch.full((), size, dtype=torch.float64, device=like.device).log().to(like.dtype)
