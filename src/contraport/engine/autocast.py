"""Autocast, turned off where the engine computes: sums over many pairs need single precision at least."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

_NOTHING = nullcontext()


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the device of a tensor casts nothing; where nothing is cast, entering it is free."""
    kind = like.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _NOTHING
