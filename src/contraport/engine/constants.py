"""What is the same in every call is made once: patterns of compared pairs, marginals, zeros.

What is kept is bounded in number, belongs to no object (so that objectives can be pickled and used by several threads),
and is made outside of inference mode, so that it serves calls with a gradient too. Under `torch.compile`, and under
tensors that stand for others, nothing is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import wraps
from typing import TypeVar

import torch
from torch import Tensor

MOST_KEPT = 64
"""How many values of one function are kept, the last ones made."""

Value = TypeVar("Value")


def remembered(make: Callable[..., Value]) -> Callable[..., Value]:
    """Let a function of hashable arguments remember what it has made."""
    kept: dict[Hashable, Value] = {}
    lock = threading.Lock()

    @wraps(make)
    def get(*key: Hashable) -> Value:
        if torch.compiler.is_compiling():
            return make(*key)
        value = kept.get(key)
        if value is not None:
            return value
        with torch.inference_mode(False), torch.no_grad():
            value = make(*key)
            real = type(torch.empty(0)) is Tensor
        if real:
            with lock:
                if len(kept) >= MOST_KEPT:
                    del kept[next(iter(kept))]
                kept[key] = value
        return value

    return get


@remembered
def _full(size: int, value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((size,), value, dtype=dtype, device=device)


def constant(size: int, value: float, like: Tensor) -> Tensor:
    """Return a vector of one number, (size,), in the precision and on the device of another; never write to it."""
    return _full(size, value, like.dtype, like.device)
