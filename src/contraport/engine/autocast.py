"""Autocast, turned off where the engine computes, in its gradients too: sums over pairs need single precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import Tensor

_NOTHING = nullcontext()


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the device of a tensor casts nothing; where nothing is cast, entering it is free."""
    kind = like.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _NOTHING


def products_without_autocast(value: Tensor) -> Tensor:
    """Return a matrix product whose gradient is not cast either, if backward runs where autocast is on.

    torch restores the state of autocast before the next node of the graph. A compiled graph has its own.
    """
    if not torch.compiler.is_compiling() and value.grad_fn is not None:
        value.grad_fn.register_prehook(partial(_turn_off, value.device.type))
    return value


def _turn_off(kind: str, seeds: tuple[Tensor, ...]) -> None:
    if torch.amp.is_autocast_available(kind):
        torch.set_autocast_enabled(kind, False)
