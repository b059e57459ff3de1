"""Transforms of functions (`torch.func`): within one, all is plain operations, and nothing outside is changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contraport.errors import check


def within_transform() -> bool:
    """Return whether `torch.func` differentiates or batches what is computed here."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def check_outside(refused: str, expected: str) -> None:
    """Raise `UsageError` within a transform, for what has no plain operations, or changes something.

    Args:
        refused: the name of the argument, and what cannot be.
        expected: what can.
    """
    check(not within_transform(), f"{refused} within torch.func; expected {expected}.")


def pullback(function: Callable[..., Tensor], inputs: Sequence[Tensor], cotangent: Tensor) -> Sequence[Tensor | None]:
    """Return the gradient of a function in each input; None where there is none.

    Within an operator of torch autograd records nothing, and `torch.func` takes its place.
    """
    with torch.enable_grad():
        leaves = [v.detach().requires_grad_() for v in inputs]
        value = function(*leaves)
        if value.requires_grad:
            return torch.autograd.grad(value, leaves, cotangent, allow_unused=True)
    gradients: tuple[Tensor, ...] = torch.func.vjp(function, *(v.detach() for v in inputs))[1](cotangent)
    return gradients
