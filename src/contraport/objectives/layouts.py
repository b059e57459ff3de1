"""Layouts: which pairs are compared.

A layout turns the views of a batch into blocks. A block is one set of rows, one of columns, what is left out between
them, and where the positives stand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from contraport.engine import Geometry, Kernel, Mask
from contraport.errors import check


@dataclass(frozen=True, eq=False)
class Block:
    """Rows compared with columns.

    Attributes:
        x: embeddings of the rows, (N, d).
        y: embeddings of the columns, (M, d); the same tensor as x where both are the same embeddings.
        row_items: which item of the batch each row shows, (N,).
        column_items: which item each column shows, (M,).
        positives: the row and the column of every positive pair, two index tensors (k,).
        weight: the factor of this block in the objective, for each direction.
        reciprocal: whether the columns are matched to the rows as well, each direction with its own plan.
    """

    x: Tensor
    y: Tensor
    row_items: Tensor
    column_items: Tensor
    positives: tuple[Tensor, Tensor]
    weight: float = 1.0
    reciprocal: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return len(self.x), len(self.y)

    def spread(self, attribute: Tensor) -> tuple[Tensor, Tensor]:
        """Return an attribute of the items, (n, ...), as that of the rows, (N, ...), and of the columns, (M, ...)."""
        return attribute[self.row_items], attribute[self.column_items]

    def geometry(self, kernel: Kernel, ids: Tensor | None = None) -> Geometry:
        """Return the compared pairs under a kernel, without self pairs and without pairs of items with equal `ids`.

        An item stays comparable with itself: its positives are not left out.
        """
        masks = []
        if self.x is self.y:
            places = torch.arange(len(self.x), device=self.x.device)
            masks.append(Mask((places, places)))
        if ids is not None:
            masks.append(Mask(self.spread(ids), kept=(self.row_items, self.column_items)))
        return Geometry(kernel(self.x, self.y), tuple(masks))


class Layout(Protocol):
    """Turns the views of a batch, tensors (n, d), into blocks of compared pairs."""

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the blocks."""


@dataclass(frozen=True)
class Cross:
    """The rows are one view, the columns the other, the positives the diagonal.

    Args:
        symmetric: average both directions, view 0 to view 1 and back.

    >>> import torch
    >>> (block,) = Cross()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape
    (3, 3)
    """

    symmetric: bool = True

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (n, n)."""
        check(len(views) == 2, f"views: the cross layout compares 2 views, got {len(views)}.")
        return [pair_of_views(*views, reciprocal=self.symmetric, weight=0.5 if self.symmetric else 1.0)]


@dataclass(frozen=True)
class Joint:
    """Rows and columns are all embeddings of both views, 2n of them; self pairs are left out.

    >>> import torch
    >>> (block,) = Joint()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape, block.positives[1].tolist()
    ((6, 6), [3, 4, 5, 0, 1, 2])
    """

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (2n, 2n)."""
        check(len(views) == 2, f"views: the joint layout compares 2 views, got {len(views)}.")
        n, device = len(views[0]), views[0].device
        z, places = torch.cat(views), torch.arange(2 * n, device=device)
        return [Block(z, z, places % n, places % n, (places, places.roll(n)))]


def pair_of_views(z0: Tensor, z1: Tensor, *, reciprocal: bool, weight: float) -> Block:
    """Return the block that compares two views, item i with item i the positives."""
    items = torch.arange(len(z0), device=z0.device)
    return Block(z0, z1, items, items, (items, items), weight, reciprocal)


def check_views(views: Sequence[Tensor]) -> None:
    """Raise `UsageError` unless the views are matching (n, d) tensors of floating point numbers, n at least 1."""
    for k, view in enumerate(views):
        check(isinstance(view, Tensor), f"z{k}: expected a tensor, got {type(view).__name__}.")
        check(
            view.ndim == 2 and view.shape == views[0].shape,
            f"z{k}: expected shape (n, d), the same for all views, got {[tuple(v.shape) for v in views]}.",
        )
        check(view.is_floating_point(), f"z{k}: expected floating point embeddings, got {view.dtype}.")
        check(view.device == views[0].device, f"z{k}: is on {view.device}, but z0 is on {views[0].device}.")
        check(view.numel() > 0, f"z{k}: expected at least one item and one coordinate, got shape {tuple(view.shape)}.")
