"""A block: rows compared with columns, what is left out between them, and where the positives stand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contraport.engine import Geometry, Kernel, Mask
from contraport.errors import check
from contraport.objectives.equality import Indicator


@dataclass(frozen=True, eq=False)
class Block:
    """Rows compared with columns.

    Attributes:
        x: embeddings of the rows, (N, d).
        y: embeddings of the columns, (M, d); the same tensor as x where both are the same embeddings.
        size: how many items the batch has, n.
        row_items: which item of the batch each row shows, (N,).
        column_items: which item each column shows, (M,); -1 where a column shows none.
        positives: the row and the column of every positive pair, two index tensors (k,).
        masks: the pairs left out.
        weight: the factor of this block in the objective, for each direction.
        reciprocal: whether the columns are matched to the rows as well, each direction with its own plan.
        strangers: how many columns, the last ones, show no item of the batch.
    """

    x: Tensor
    y: Tensor
    size: int
    row_items: Tensor
    column_items: Tensor
    positives: tuple[Tensor, Tensor]
    masks: tuple[Mask, ...] = ()
    weight: float = 1.0
    reciprocal: bool = False
    strangers: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return len(self.x), len(self.y)

    @property
    def T(self) -> Block:
        """The same block with rows and columns exchanged."""
        return replace(
            self,
            x=self.y,
            y=self.x,
            row_items=self.column_items,
            column_items=self.row_items,
            positives=self.positives[::-1],
            masks=tuple(mask.T for mask in self.masks),
        )

    @property
    def items(self) -> tuple[Tensor, Tensor]:
        """The items of the rows, (N,), and of the columns, (M,)."""
        return self.row_items, self.column_items

    def spread(self, attribute: Tensor) -> tuple[Tensor, Tensor]:
        """Return an attribute of the items, (n, ...), as that of the rows, (N, ...), and of the columns, (M, ...)."""
        return attribute[self.row_items], attribute[self.column_items]

    def without_duplicates(self, ids: Tensor) -> Block:
        """Return the block without the pairs of different items with equal `ids`, (n,)."""
        check(self.strangers == 0, "ids: the columns of this layout show no items, so none is a duplicate.")
        return replace(self, masks=(*self.masks, Mask(self.spread(ids), kept=self.items)))

    def beside(self, negatives: Tensor, ids: tuple[Tensor, Tensor] | None = None) -> Block:
        """Return this direction of the block with further columns to which nothing is matched.

        Args:
            negatives: embeddings of the further columns, (k, d).
            ids: identities of the items, (n,), and of the further columns, (k,); pairs with equal ones are left out.
        """
        k = len(negatives)
        masks = tuple(mask.beside(k) for mask in self.masks)
        if ids is not None:
            of_rows, of_negatives = ids[0][self.row_items], ids[1]
            unlike = (of_rows.amin() - 1).expand(self.shape[1])
            masks += (Mask((of_rows, torch.cat([unlike, of_negatives]))),)
        return replace(
            self,
            y=torch.cat([self.y, negatives]),
            column_items=torch.cat([self.column_items, nobody(k, self.column_items)]),
            masks=masks,
            reciprocal=False,
            strangers=self.strangers + k,
        )

    def geometry(self, kernel: Kernel) -> Geometry:
        """Return the compared pairs under a kernel."""
        return Geometry(kernel(self.x, self.y), self.masks)

    def compared(self) -> Indicator:
        """Return the set of compared pairs."""
        return Indicator.allowed(self.masks, self.items)

    def negatives(self) -> Indicator:
        """Return the set of compared pairs that show different items."""
        return self.compared().without(Indicator.equal(self.items))

    @property
    def compares_positives(self) -> bool:
        """Whether positives are among the compared pairs: no mask goes by the items alone."""
        return all(mask.kept is not None or mask.labels[0] is not self.row_items for mask in self.masks)


def paired(z0: Tensor, z1: Tensor, weight: float, reciprocal: bool) -> Block:
    """Return the block that compares two views, item i with item i the positives."""
    items = torch.arange(len(z0), device=z0.device)
    return Block(z0, z1, len(z0), items, items, (items, items), (), weight, reciprocal)


def nobody(columns: int, like: Tensor) -> Tensor:
    """Return the items of columns that show none."""
    return like.new_full((columns,), -1)
