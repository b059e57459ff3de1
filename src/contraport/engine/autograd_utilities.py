"""Helpers for `torch.func`, higher-order gradients, autocast and checkpointing.

Within a `torch.func` transform everything is plain operations and no outside state changes. Autocast is off wherever
the engine computes, gradients included: sums over many pairs need single precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from contraport.errors import check

MAX_BLOCK_PAIRS = 1 << 20
"""Maximum number of pairs in a block of `checkpoint_row_blocks`, unless one row has more."""


def is_in_torch_func() -> bool:
    """Return whether a `torch.func` transform (vmap, grad, jvp) is active."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def check_not_in_torch_func(limitation: str, alternative: str) -> None:
    """Raise `UsageError` within a `torch.func` transform.

    The message states the limitation and an alternative.
    """
    check(not is_in_torch_func(), f"{limitation} within torch.func; use {alternative}.", "torch_func")


def vjp(function: Callable[..., Tensor], inputs: Sequence[Tensor], cotangent: Tensor) -> Sequence[Tensor | None]:
    """Return the vector-Jacobian product of a function, None for unused inputs.

    Within a torch operator autograd records nothing, and `torch.func` takes its place.
    """
    with torch.enable_grad():
        leaves = [v.detach().requires_grad_() for v in inputs]
        value = function(*leaves)
        if value.requires_grad:
            return torch.autograd.grad(value, leaves, cotangent, allow_unused=True)
    gradients: tuple[Tensor, ...] = torch.func.vjp(function, *(v.detach() for v in inputs))[1](cotangent)
    return gradients


def differentiable_gradients(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Tensor | None],
    grad_outputs: Sequence[Tensor | None],
    needs_grad: Sequence[bool],
) -> list[Tensor | None]:
    """Return a function's gradients, which can themselves be differentiated.

    Args:
        function: maps the inputs to its outputs, by plain PyTorch operations.
        inputs: may depend on one another; None where an input is absent.
        grad_outputs: cotangents of the outputs; None is zero.
        needs_grad: one flag per input.
    """
    # Views cut the graph between the inputs: a gradient that reaches one input through another is not the function's.
    views = [None if v is None else v.view_as(v) for v in inputs]
    with torch.enable_grad():
        outputs = function(*views)
    seeded = [
        (output, grad_output)
        for output, grad_output in zip(outputs, grad_outputs, strict=True)
        if grad_output is not None
    ]
    variables = [v for v, needed in zip(views, needs_grad, strict=True) if needed and v is not None]
    if not (seeded and variables):
        return [None] * len(inputs)
    values, cotangents = zip(*seeded, strict=True)
    gradients = iter(torch.autograd.grad(values, variables, cotangents, create_graph=True, allow_unused=True))
    return [next(gradients) if needed and v is not None else None for v, needed in zip(views, needs_grad, strict=True)]


def autocast_disabled(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context that disables autocast on the device of a tensor."""
    kind = tensor.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def disable_autocast_in_grad_fn(value: Tensor) -> Tensor:
    """Disable autocast in the backward node of a tensor, and return the tensor.

    A hook turns autocast off just before the node of the product; torch restores it before the next node. Nodes of a
    compiled graph have no hooks: see `contraport.engine.log_kernels`.
    """
    device_type = value.device.type

    def disable_autocast(_: tuple[Tensor, ...]) -> None:
        if torch.amp.is_autocast_available(device_type):
            torch.set_autocast_enabled(device_type, False)

    if not torch.compiler.is_compiling() and value.grad_fn is not None:
        value.grad_fn.register_prehook(disable_autocast)
    return value


def checkpoint_row_blocks(function: Callable[[slice], Tensor], num_rows: int, num_columns: int) -> Tensor:
    """Apply a function to one block of rows at a time, with checkpointing.

    Each block is computed again for its gradient, so that no graph over all pairs is held. Within `torch.func`, which
    has no checkpointing, all blocks are in memory together.

    Args:
        function: maps a range of rows to a tensor with as many rows, without random numbers: the state of generators
            is not restored.
        num_rows: number N of rows in all.
        num_columns: number of pairs of a row, which limits the number of rows in a block.

    Returns:
        The results of all blocks, concatenated, (N, ...).

    >>> import torch
    >>> checkpoint_row_blocks(lambda rows: torch.arange(5)[rows], 5, MAX_BLOCK_PAIRS // 2).tolist()
    [0, 1, 2, 3, 4]
    """
    height = max(1, MAX_BLOCK_PAIRS // num_columns)
    blocks = [slice(top, min(top + height, num_rows)) for top in range(0, num_rows, height)]
    if len(blocks) == 1:  # a checkpoint would only compute it twice
        return function(blocks[0])
    if is_in_torch_func():
        return torch.cat([function(rows) for rows in blocks])
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, rows, use_reentrant=False, preserve_rng_state=False) for rows in blocks])
    first = function(blocks[0])
    # Into one tensor: small results that lie between the matrices of the blocks would fragment the heap, which then
    # grows to the size of all pairs.
    results = first.new_empty((num_rows, *first.shape[1:]))
    results[blocks[0]] = first
    for rows in blocks[1:]:
        results[rows] = function(rows)
    return results
