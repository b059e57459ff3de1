"""A block: embeddings that are compared, and the pattern in which they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from contraport.engine import CacheEntry, Geometry, Kernel, Mask, Threshold, remembered
from contraport.errors import UsageError
from contraport.objectives.equality import Indicator

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Pattern:
    """All of a block that does not depend on embeddings: which pairs are compared, and where the positives stand.

    Attributes:
        size: how many items the batch has, n.
        row_items: which item of the batch each row shows, (N,).
        column_items: which item each column shows, (M,); -1 where a column shows none.
        positives: the row and the column of every positive pair, two index tensors (k,).
        masks: the pairs left out.
        weight: the factor of the block in the objective, for each direction.
        reciprocal: whether the columns are matched to the rows as well, each direction with its own plan.
        strangers: how many columns, the last ones, show no item of the batch.
        one_each: whether the k-th positive is that of row k, and its only one.
        crowded: whether something of every row and column is compared.
        chosen: which rows and columns of the layout these are, (N,) and (M,), where some are absent.
    """

    size: int
    row_items: Tensor
    column_items: Tensor
    positives: tuple[Tensor, Tensor]
    masks: tuple[Mask | Threshold, ...] = ()
    weight: float = 1.0
    reciprocal: bool = False
    strangers: int = 0
    one_each: bool = False
    crowded: bool = False
    chosen: tuple[Tensor, Tensor] | None = None
    _kept: dict[Hashable, CacheEntry[Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.row_items.shape[0], self.column_items.shape[0]  # len() of a tensor takes three times as long

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what a function makes, made at its first call; it must follow from the pattern and the key alone."""
        if torch.compiler.is_compiling():
            return make()
        entry: CacheEntry[Value] | None = self._kept.get(key)
        if entry is None or not entry.intact:
            with torch.inference_mode(False), torch.no_grad():
                self._kept[key] = entry = CacheEntry(make())
        return entry.value

    @property
    def T(self) -> Pattern:
        """The same pattern with rows and columns exchanged."""
        return self.once("T", self._transposed)

    def _transposed(self) -> Pattern:
        return replace(
            self,
            row_items=self.column_items,
            column_items=self.row_items,
            positives=self.positives[::-1],
            masks=tuple(mask.T for mask in self.masks),
            one_each=self.one_each and self.positives[0] is self.positives[1],
            chosen=None if self.chosen is None else self.chosen[::-1],
        )

    def only(self, rows: Tensor, columns: Tensor) -> Pattern:
        """Return the pattern of some rows and columns, index tensors (N',) and (M',), one tensor where both are."""
        taken: dict[tuple[int, int], Tensor] = {}

        def take(sides: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            # What is one tensor stays one: so it is known that rows and columns are the same, and that a mask goes by
            # the items.
            for side, where in zip(sides, (rows, columns), strict=True):
                if (id(side), id(where)) not in taken:
                    taken[id(side), id(where)] = side[where]
            return taken[id(sides[0]), id(rows)], taken[id(sides[1]), id(columns)]

        row_items, column_items = take(self.items)
        masks = (
            Mask(take(mask.labels), None if mask.kept is None else take(mask.kept))
            for mask in self.masks
            if isinstance(mask, Mask)  # all are: what depends on features comes once it is known what is there
        )
        places = [
            torch.full((size,), -1, device=where.device).scatter(
                0, where, torch.arange(len(where), device=where.device)
            )
            for size, where in zip(self.shape, (rows, columns), strict=True)
        ]
        positives = torch.stack([place[side] for place, side in zip(places, self.positives, strict=True)])
        there = positives[:, (positives >= 0).all(0)]
        return replace(
            self,
            row_items=row_items,
            column_items=column_items,
            positives=(there[0], there[1]),
            masks=tuple(masks),
            one_each=False,
            crowded=False,
            chosen=(rows, columns),
        )

    @property
    def items(self) -> tuple[Tensor, Tensor]:
        """The items of the rows, (N,), and of the columns, (M,)."""
        return self.row_items, self.column_items

    def spread(self, attribute: Tensor) -> tuple[Tensor, Tensor]:
        """Return an attribute of the items, (n, ...), as that of the rows, (N, ...), and of the columns, (M, ...)."""
        return attribute[self.row_items], attribute[self.column_items]

    def without_duplicates(self, ids: Tensor) -> Pattern:
        """Return the pattern without the pairs of different items with equal `ids`, (n,)."""
        if self.strangers > 0:
            raise UsageError("ids: the columns of this layout show no items, so none is a duplicate.")
        duplicates = Mask(self.spread(ids), kept=self.items)
        return replace(self, masks=(*self.masks, duplicates), crowded=self.crowded and self.compares_positives)

    def beside(self, columns: int, ids: tuple[Tensor, Tensor] | None = None, owners: Tensor | None = None) -> Pattern:
        """Return one direction of the pattern with further columns to which nothing is matched.

        Args:
            columns: how many, k.
            ids: identities of the items, (n,), and of the further columns, (k,); pairs with equal ones are left out.
            owners: with which item alone each is compared, (k,); None is with all.
        """
        masks = tuple(mask.beside(columns) for mask in self.masks)
        if owners is not None:
            everyone, of_batch = torch.zeros_like(self.row_items), torch.full_like(self.column_items, -1)
            of_others = everyone, torch.cat([of_batch, torch.zeros_like(owners)])
            masks += (Mask(of_others, kept=(self.row_items, torch.cat([of_batch, owners]))),)
        if ids is not None:
            of_rows, of_negatives = ids[0][self.row_items], ids[1]
            unlike = (of_rows.amin() - 1).expand(self.shape[1])
            masks += (Mask((of_rows, torch.cat([unlike, of_negatives]))),)
        return replace(
            self,
            column_items=torch.cat([self.column_items, nobody(columns, self.column_items)]),
            masks=masks,
            reciprocal=False,
            strangers=self.strangers + columns,
            crowded=False,
        )

    def masked(self, matrix: Tensor, value: float) -> Tensor:
        """Return a matrix, (N, M), with a value in the place of the pairs that are left out."""
        for mask in self.masks:
            matrix = matrix.masked_fill(mask.whole(), value)
        return matrix

    def compared(self) -> Indicator:
        """Return the set of compared pairs."""
        return self.once("compared", lambda: Indicator.allowed(self.masks, self.items))

    def negatives(self) -> Indicator:
        """Return the set of compared pairs that show different items."""
        return self.once("negatives", lambda: self.compared().without(Indicator.equal(self.items)))

    @property
    def compares_positives(self) -> bool:
        """Whether positives are among the compared pairs: no mask goes by the items alone."""
        for mask in self.masks:
            if isinstance(mask, Mask) and mask.kept is None and mask.labels[0] is self.row_items:
                return False
        return True


@dataclass(frozen=True, eq=False)
class Block:
    """Rows compared with columns.

    Attributes:
        pattern: which pairs are compared.
        x: embeddings of the rows, (N, d).
        y: embeddings of the columns, (M, d); the same tensor as x where both are the same embeddings.
        similarities: of the rows with the columns, (N, M), where they are given and the embeddings are not.
    """

    pattern: Pattern
    x: Tensor
    y: Tensor
    similarities: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.pattern.shape

    @property
    def precision(self) -> torch.dtype:
        """The precision of what is computed of it: that of the embeddings, single at least."""
        return self.x.dtype if self.x.dtype == torch.float64 else torch.float32

    @property
    def T(self) -> Block:
        """The same block with rows and columns exchanged."""
        return Block(self.pattern.T, self.y, self.x, None if self.similarities is None else self.similarities.T)

    def only(self, rows: Tensor, columns: Tensor) -> Block:
        """Return the block of some rows and columns, before it has similarities; see `Pattern.only`."""
        x = self.x[rows]
        return Block(self.pattern.only(rows, columns), x, x if self.y is self.x else self.y[columns])

    def beside(
        self, negatives: Tensor, ids: tuple[Tensor, Tensor] | None = None, owners: Tensor | None = None
    ) -> Block:
        """Return this direction of the block with further columns, (k, d); see `Pattern.beside`."""
        return Block(self.pattern.beside(len(negatives), ids, owners), self.x, torch.cat([self.y, negatives]))

    def geometry(self, kernel: Kernel, temperature: float | Tensor | None = None) -> Geometry:
        """Return the compared pairs under a kernel, at its own temperature unless another is given."""
        if self.similarities is None:
            log_kernel = kernel(self.x, self.y, temperature)
        else:
            log_kernel = kernel.of_similarities(self.similarities, temperature)
        return Geometry(log_kernel, self.pattern.masks, self.pattern.crowded)


@remembered
def pattern_of_pairs(
    size: int, weight: float, reciprocal: bool, device: torch.device, decoupled: bool = False
) -> Pattern:
    """Return the pattern that compares two views of some items, item i with item i the positives.

    Decoupled, these are left out of what is compared.
    """
    items = torch.arange(size, device=device)
    masks, crowded = ((Mask((items, items)),), size > 1) if decoupled else ((), True)
    return Pattern(size, items, items, (items, items), masks, weight, reciprocal, one_each=True, crowded=crowded)


def nobody(columns: int, like: Tensor) -> Tensor:
    """Return the items of columns that show none."""
    return like.new_full((columns,), -1)
