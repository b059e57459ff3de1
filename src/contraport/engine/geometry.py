"""A geometry: which pairs of rows and columns are compared, and how alike they are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from contraport.engine.links import Link
from contraport.engine.log_kernels import LogKernel

FEW_PAIRS = 1 << 16
"""Up to so many pairs (256 by 256) a mask as a whole is remembered: 64 KiB."""


@dataclass(frozen=True, eq=False)
class LabelMask:
    """Excluded pairs: those with equal labels, except those with equal `kept` labels.

    One rule covers self pairs, duplicates and positives that are kept out of a denominator; it needs O(N + M) memory
    and costs a comparison within a tile.

    Attributes:
        labels: integer labels of the rows, (N,), and of the columns, (M,).
        kept: the same for the exceptions, or None where there are none.
    """

    labels: tuple[Tensor, Tensor]
    kept: tuple[Tensor, Tensor] | None = None

    @property
    def T(self) -> LabelMask:
        """The same mask with rows and columns exchanged."""
        return LabelMask(self.labels[::-1], None if self.kept is None else self.kept[::-1])

    def restrict(self, rows: slice) -> LabelMask:
        """Return the mask on some of its rows."""
        kept = None if self.kept is None else (self.kept[0][rows], self.kept[1])
        return LabelMask((self.labels[0][rows], self.labels[1]), kept)

    def beside(self, columns: int) -> LabelMask:
        """Return the mask with so many further columns, none of whose pairs it excludes."""
        unlike = (self.labels[0].amin() - 1).expand(columns)
        kept = None if self.kept is None else (self.kept[0], torch.cat([self.kept[1], unlike.to(self.kept[1])]))
        return LabelMask((self.labels[0], torch.cat([self.labels[1], unlike])), kept)

    @property
    def symmetric(self) -> bool:
        """Whether rows and columns have the same labels."""
        return self.labels[0] is self.labels[1] and (self.kept is None or self.kept[0] is self.kept[1])

    @cached_property
    def _few(self) -> Tensor:
        with torch.inference_mode(False):
            return self.tile(slice(None), slice(None))

    def whole(self) -> Tensor:
        """Return the mask on all pairs, (N, M); few pairs are remembered."""
        n, m = len(self.labels[0]), len(self.labels[1])
        few = n * m <= FEW_PAIRS and not torch.compiler.is_compiling()
        return self._few if few else self.tile(slice(None), slice(None))

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Return the mask on a tile: a boolean tensor, true where the pair is excluded."""
        excluded = self.labels[0][rows, None] == self.labels[1][columns]
        return excluded if self.kept is None else excluded & (self.kept[0][rows, None] != self.kept[1][columns])

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return whether each given entry is excluded: index tensors (k,) to a boolean tensor (k,)."""
        excluded = self.labels[0][rows] == self.labels[1][columns]
        return excluded if self.kept is None else excluded & (self.kept[0][rows] != self.kept[1][columns])


@dataclass(frozen=True, eq=False)
class SimilarityMask:
    """Excluded pairs: those that are alike beyond a limit in another space, except those with equal `kept` labels.

    The pair (i, j) is excluded where <x_i, y_j> > r_i + c_j; it costs a product within a tile and O((N + M) k) memory.

    Attributes:
        sides: x, (N, k), and y, (M, k): the rows and the columns in that space, held fixed.
        limits: r, (N,), and c, (M,).
        kept: integer labels of the exceptions: (N,) and (M,).
    """

    sides: tuple[Tensor, Tensor]
    limits: tuple[Tensor, Tensor]
    kept: tuple[Tensor, Tensor]

    @property
    def T(self) -> SimilarityMask:
        """The same mask with rows and columns exchanged."""
        return SimilarityMask(self.sides[::-1], self.limits[::-1], self.kept[::-1])

    def restrict(self, rows: slice) -> SimilarityMask:
        """Return the mask on some of its rows."""
        (x, y), (r, c), (left, right) = self.sides, self.limits, self.kept
        return SimilarityMask((x[rows], y), (r[rows], c), (left[rows], right))

    def beside(self, columns: int) -> SimilarityMask:
        """Return the mask with so many further columns, none of whose pairs it excludes."""
        (x, y), (r, c), (left, right) = self.sides, self.limits, self.kept
        unlike = (left.amin() - 1).expand(columns).to(right)
        unlimited = c.new_full((columns,), torch.inf)
        return SimilarityMask(
            (x, torch.cat([y, y.new_zeros(columns, y.shape[1])])),
            (r, torch.cat([c, unlimited])),
            (left, torch.cat([right, unlike])),
        )

    @property
    def symmetric(self) -> bool:
        """Whether it excludes (j, i) where it excludes (i, j): a limit is that of a row, so that none is known to."""
        return False

    def whole(self) -> Tensor:
        """Return the mask on all pairs, (N, M)."""
        return self.tile(slice(None), slice(None))

    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Return the mask on a tile: a boolean tensor, true where the pair is excluded."""
        (x, y), (r, c), (left, right) = self.sides, self.limits, self.kept
        beyond: Tensor = torch.mm(x[rows], y[columns].T) > r[rows, None] + c[columns]
        return beyond & (left[rows, None] != right[columns])

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return whether each given entry is excluded: index tensors (k,) to a boolean tensor (k,)."""
        (x, y), (r, c), (left, right) = self.sides, self.limits, self.kept
        beyond: Tensor = torch.linalg.vecdot(x[rows], y[columns]) > r[rows] + c[columns]
        return beyond & (left[rows] != right[columns])


@dataclass(frozen=True, eq=False)
class Geometry:
    """The compared pairs: a log-kernel between N rows and M columns, less the pairs that any of the masks excludes.

    What is computed over all pairs is the engine's business; everything here costs only what it returns.

    Attributes:
        log_kernel: log K, (N, M).
        masks: what is excluded.
        crowded: whether the masks are known to leave something of every row and column.
    """

    log_kernel: LogKernel
    masks: tuple[LabelMask | SimilarityMask, ...] = ()
    no_empty_rows: bool = False

    @property
    def full(self) -> bool:
        """Whether every row and every column is known to have some weight."""
        return self.no_empty_rows and self.log_kernel.finite

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.log_kernel.shape

    @property
    def T(self) -> Geometry:
        """The same pairs with rows and columns exchanged."""
        return Geometry(self.log_kernel.T, tuple(mask.T for mask in self.masks), self.no_empty_rows)

    def for_passes(self) -> Geometry:
        """Return the same pairs with what passes over them read alone."""
        return Geometry(self.log_kernel.for_passes(), self.masks, self.no_empty_rows)

    def restrict(self, rows: slice) -> Geometry:
        """Return the pairs of some of the rows."""
        return Geometry(self.log_kernel.restrict(rows), tuple(mask.restrict(rows) for mask in self.masks))

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log K at the given entries, minus infinity where masked: index tensors (k,) to a tensor (k,)."""
        value = self.log_kernel.at(rows, columns)
        for mask in self.masks:
            value = value.masked_fill(mask.at(rows, columns), -torch.inf)
        return value

    def dense(self) -> Tensor:
        """Return log K as an (N, M) tensor, minus infinity where masked; plain autograd."""
        value = self.log_kernel.dense()
        for mask in self.masks:
            value = value.masked_fill(mask.whole(), -torch.inf)
        return value

    def with_link(self, link: Link | None, *, scale: float | Tensor = 1.0, row_bias: Tensor | None = None) -> Geometry:
        """Return the same pairs under the kernel h(scale T_ij + bias_i); see `LogKernel.with_link`."""
        return Geometry(self.log_kernel.with_link(link, scale=scale, row_bias=row_bias), self.masks, self.no_empty_rows)

    @property
    def symmetric(self) -> bool:
        """Whether the pair (i, j) is as alike as (j, i) and masked as it is, so that half of the pairs tell all."""
        return self.log_kernel.symmetric and all(mask.symmetric for mask in self.masks)
