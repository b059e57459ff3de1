"""What embeddings must be, before they are compared."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from contraport.errors import check


def check_views(views: Sequence[Tensor], *, shared_columns: bool = False) -> None:
    """Raise `UsageError` unless the views are matching (n, d) tensors of floating point numbers, n and d at least 1.

    Args:
        views: the embeddings.
        shared_columns: whether the last view may have another number of rows.
    """
    check(len(views) >= 1, "views: expected embeddings, got none.")
    for k, view in enumerate(views):
        check(isinstance(view, Tensor), f"z{k}: expected a tensor, got {type(view).__name__}.")
        check(view.layout == torch.strided, f"z{k}: expected a dense tensor, got {view.layout}; use to_dense().")
        shared = shared_columns and k == len(views) - 1
        check(
            view.ndim == 2 and view.shape[shared:] == views[0].shape[shared:],
            f"z{k}: expected shape {'(k, d), d that of z0' if shared else '(n, d), the same for all views'}, "
            f"got {[tuple(v.shape) for v in views]}.",
        )
        _check_floating(f"z{k}", view, views[0])
        check(view.numel() > 0, f"z{k}: expected at least one item and one coordinate, got shape {tuple(view.shape)}.")


def check_negatives(negatives: object, ids: object, views: Sequence[Tensor]) -> None:
    """Raise `UsageError` unless the negatives are (k, d) floating point numbers, d that of the views, and ids (k,)."""
    d = views[0].shape[1]
    got = f"shape {tuple(negatives.shape)}" if isinstance(negatives, Tensor) else type(negatives).__name__
    good = isinstance(negatives, Tensor) and negatives.ndim == 2 and negatives.shape[1] == d
    check(good, f"negatives: expected a tensor of shape (k, {d}), got {got}.")
    assert isinstance(negatives, Tensor)
    _check_floating("negatives", negatives, views[0])
    if ids is not None:
        good = isinstance(ids, Tensor) and ids.shape == negatives.shape[:1]
        got = str(tuple(ids.shape)) if isinstance(ids, Tensor) else type(ids).__name__
        check(good, f"negative_ids: expected a tensor with one entry per negative, ({len(negatives)},), got {got}.")


def _check_floating(name: str, value: Tensor, first: Tensor) -> None:
    check(value.is_floating_point(), f"{name}: expected floating point embeddings, got {value.dtype}.")
    check(value.device == first.device, f"{name}: is on {value.device}, but z0 is on {first.device}.")
