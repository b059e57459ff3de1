"""Modes in which a computation may run: transforms of functions (`torch.func`), and autocast.

Within a transform all is plain operations, and nothing outside is changed. Autocast is turned off where the engine
computes, in its gradients too: sums over pairs need single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from contraport.errors import check

_NOTHING = nullcontext()


def is_in_torch_func() -> bool:
    """Return whether `torch.func` differentiates or batches what is computed here."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def check_not_in_torch_func(refused: str, expected: str) -> None:
    """Raise `UsageError` within a transform, for what has no plain operations, or changes something.

    Args:
        refused: the name of the argument, and what cannot be.
        expected: what can.
    """
    check(not is_in_torch_func(), f"{refused} within torch.func; expected {expected}.")


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


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context in which the device of a tensor casts nothing; where nothing is cast, entering it is free."""
    kind = like.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _NOTHING


def disable_autocast_in_backward(value: Tensor) -> Tensor:
    """Return a matrix product whose gradient is not cast either, if backward runs where autocast is on.

    torch restores the state of autocast before the next node of the graph. Nodes of a compiled graph have no hooks: see
    `inner_products`.
    """
    if not torch.compiler.is_compiling() and value.grad_fn is not None:
        value.grad_fn.register_prehook(partial(_turn_off, value.device.type))
    return value


def inner_products(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return <x_i, y_j> + bias_j, (N, M), with a gradient without autocast, in a compiled graph too."""
    if torch.compiler.is_compiling():
        products: Tensor = _InnerProducts.apply(bias, x, y.view_as(y))  # a tensor goes into an operation once
        return products
    return disable_autocast_in_backward(torch.addmm(bias, x, y.T))


class _InnerProducts(torch.autograd.Function):
    """Inner products for compiled graphs, whose backward would be traced under the autocast of the call."""

    @staticmethod
    def forward(ctx: Any, bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return torch.addmm(bias, x, y.T)

    @staticmethod
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y = ctx.saved_tensors
        with torch.autocast(seed.device.type, enabled=False):
            return seed.sum(0), seed @ y, seed.T @ x


def _turn_off(kind: str, seeds: tuple[Tensor, ...]) -> None:
    if torch.amp.is_autocast_available(kind):
        torch.set_autocast_enabled(kind, False)
