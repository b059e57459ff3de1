"""Checks of embeddings, and of the values of what comes with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from contraport.errors import UsageError, check, check_each


def check_views(views: Sequence[Tensor], *, shared_columns: bool = False, first: int = 0) -> None:
    """Raise `UsageError` unless the views are matching (n, d) tensors of floating point numbers, n and d at least 1.

    Args:
        views: the embeddings.
        shared_columns: whether the last view may have another number of rows.
        first: the number of the first of them among the views of the call.
    """
    if not views:
        raise UsageError("views: expected embeddings, got none.")
    for k, view in enumerate(views, first):
        if not isinstance(view, Tensor):
            raise UsageError(f"z{k}: expected a tensor, got {type(view).__name__}.")
        if view.layout != torch.strided:
            raise UsageError(f"z{k}: expected a dense tensor, got {view.layout}; use to_dense().")
        shared = shared_columns and k == first + len(views) - 1
        if view.ndim != 2 or view.shape[shared:] != views[0].shape[shared:]:
            expected = "(k, d), d that of z0" if shared else "(n, d), the same for all views"
            raise UsageError(f"z{k}: expected shape {expected}, got {[tuple(v.shape) for v in views]}.")
        if not view.is_floating_point() or view.device != views[0].device:
            _check_floating(f"z{k}", view, views[0])
        if view.numel() == 0:
            raise UsageError(f"z{k}: expected at least one item and one coordinate, got shape {tuple(view.shape)}.")


def check_negatives(negatives: object, ids: Tensor | None, views: Sequence[Tensor], rows: int) -> None:
    """Raise `UsageError` unless the negatives are floating point numbers of a shape that fits, and ids fit them.

    Args:
        negatives: (k, d), or (n, k, d) for each of the items of the first view.
        ids: (k,), or (n, k), or None.
        views: what they stand beside.
        rows: how many items the first view has, n.
    """
    d = views[0].shape[1]
    got = f"shape {tuple(negatives.shape)}" if isinstance(negatives, Tensor) else type(negatives).__name__
    good = isinstance(negatives, Tensor) and negatives.ndim in (2, 3) and negatives.shape[-1] == d
    good = good and isinstance(negatives, Tensor) and (negatives.ndim == 2 or len(negatives) == rows)
    check(good, f"negatives: expected a tensor of shape (k, {d}), or ({rows}, k, {d}) for each item, got {got}.")
    assert isinstance(negatives, Tensor)
    _check_floating("negatives", negatives, views[0])
    if ids is not None:
        shape, given = tuple(negatives.shape[:-1]), tuple(ids.shape)
        check(given == shape, f"negative_ids: expected a tensor with one entry per negative, {shape}, got {given}.")


def check_values(argument: str, values: Tensor, good: Tensor, expected: str) -> None:
    """Raise `UsageError` unless all values are good, see `check_each`; under `torch.compile` the graph asserts it.

    No number can be read while a graph is traced: a compiled call raises the assertion as it runs.
    """
    if torch.compiler.is_compiling():
        torch._assert_async(good.all(), f"{argument}: expected {expected}.")
    else:
        check_each(argument, values, good, expected)


def _check_floating(name: str, value: Tensor, first: Tensor) -> None:
    if not value.is_floating_point():
        raise UsageError(f"{name}: expected floating point embeddings, got {value.dtype}.")
    if value.device != first.device:
        raise UsageError(f"{name}: is on {value.device}, but z0 is on {first.device}.")
