"""Autograd utilities: `torch.func` transforms, autocast, and checkpointing by blocks of rows.

Within a `torch.func` transform everything is plain operations and no outside state changes. Autocast is off wherever
the engine computes, gradients included: sums over many pairs need single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contraport.errors import check

_NO_CONTEXT = nullcontext()

BLOCK_ENTRIES = 1 << 20
"""Number of pairs that `map_row_blocks` holds at a time."""


def is_in_torch_func() -> bool:
    """Return whether a `torch.func` transform (vmap, grad, jvp) is active."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def check_not_in_torch_func(refused: str, expected: str) -> None:
    """Raise `UsageError` within a `torch.func` transform.

    Args:
        refused: the name of the argument, and what is not possible.
        expected: the alternative.
    """
    check(not is_in_torch_func(), f"{refused} within torch.func; use {expected}.", "torch_func")


def vjp(function: Callable[..., Tensor], inputs: Sequence[Tensor], cotangent: Tensor) -> Sequence[Tensor | None]:
    """Return the vector-Jacobian product of a function: one gradient per input, None for inputs without a gradient.

    Within a torch operator autograd records nothing, and `torch.func` takes its place.
    """
    with torch.enable_grad():
        leaves = [v.detach().requires_grad_() for v in inputs]
        value = function(*leaves)
        if value.requires_grad:
            return torch.autograd.grad(value, leaves, cotangent, allow_unused=True)
    gradients: tuple[Tensor, ...] = torch.func.vjp(function, *(v.detach() for v in inputs))[1](cotangent)
    return gradients


def without_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Return a context that disables autocast on the device of a tensor; free of cost if autocast is off."""
    kind = like.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return _NO_CONTEXT


def disable_autocast_in_backward(value: Tensor) -> Tensor:
    """Return a matrix product whose gradient is computed without autocast, even if autocast is on during backward.

    A hook turns autocast off just before the node of the product; torch restores it before the next node. Nodes of a
    compiled graph have no hooks: see `inner_products`.
    """
    if not torch.compiler.is_compiling() and value.grad_fn is not None:
        value.grad_fn.register_prehook(partial(_turn_off, value.device.type))
    return value


def inner_products(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the inner products <x_i, y_j> + bias_j, (N, M), with a gradient that never uses autocast."""
    if torch.compiler.is_compiling():
        products: Tensor = _InnerProducts.apply(bias, x, y.view_as(y))  # a view: an operation takes a tensor only once
        return products
    return disable_autocast_in_backward(torch.addmm(bias, x, y.T))


class _InnerProducts(torch.autograd.Function):
    """Autograd function of inner products in compiled graphs; it keeps autocast out of the backward pass."""

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


def map_row_blocks(function: Callable[[slice], Tensor], shape: tuple[int, int]) -> list[Tensor]:
    """Apply a function to one block of rows at a time, forward and backward, so that only one block is in memory.

    Each block is checkpointed: computed again for its gradient, so that no graph over all pairs is held. Within
    `torch.func`, which has no checkpointing, all blocks are in memory together.

    Args:
        function: maps a range of rows to a tensor; it may allocate as many numbers as the block has pairs.
        shape: (N, M), the number of rows and of columns.

    >>> import torch
    >>> torch.cat(map_row_blocks(lambda rows: torch.arange(5)[rows], (5, BLOCK_ENTRIES // 2))).tolist()
    [0, 1, 2, 3, 4]
    """
    n, m = shape
    height = max(1, BLOCK_ENTRIES // m)
    blocks = [slice(top, min(top + height, n)) for top in range(0, n, height)]
    if len(blocks) == 1 or is_in_torch_func():
        return [function(rows) for rows in blocks]
    return [checkpoint(function, rows, use_reentrant=False, preserve_rng_state=False) for rows in blocks]
