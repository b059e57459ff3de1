"""Log-kernels between rows and columns, with masks that exclude pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from contraport.engine.kernel_link_functions import Link
from contraport.engine.log_kernels import Indices, LogKernel
from contraport.options import keep_deprecated_attributes


class PairExclusion(ABC):
    """Base class of masks that exclude pairs by a rule, in O(N + M) memory."""

    @property
    @abstractmethod
    def T(self) -> Self:
        """Transposed mask, with rows and columns exchanged."""

    @abstractmethod
    def take_rows(self, rows: Indices) -> Self:
        """Return the mask of excluded pairs, restricted to some rows."""

    def take_rows_and_columns(self, rows: Indices, columns: Indices) -> Self:
        """Return the mask of excluded pairs, restricted to some rows and columns."""
        return self.take_rows(rows).T.take_rows(columns).T

    @abstractmethod
    def append_columns(self, num_columns: int) -> Self:
        """Return the mask with additional columns, in which no pair is excluded."""

    @property
    def is_symmetric(self) -> bool:
        """True if the set of excluded pairs is known to be symmetric."""
        return False

    @abstractmethod
    def tile(self, rows: slice, columns: slice) -> Tensor:
        """Return the mask of a tile as a Boolean tensor, true where excluded."""

    def dense(self) -> Tensor:
        """Return the mask of all pairs as a Boolean tensor, (N, M), true where excluded."""
        return self.tile(slice(None), slice(None))

    @abstractmethod
    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return, for k pairs with given indices, whether each is excluded."""


@dataclass(frozen=True, eq=False)
class LabelExclusion(PairExclusion):
    """Mask that excludes pairs with equal labels, unless a second label is equal too.

    One rule covers self pairs, duplicates and positives that are left out of a denominator, at the cost of a comparison
    per pair.

    Attributes:
        labels: Integer labels of the rows, (N,), and of the columns, (M,).
        exception_labels: Exception labels of the rows, (N,), and of the columns, (M,); None for no exceptions.
    """

    labels: tuple[Tensor, Tensor]
    exception_labels: tuple[Tensor, Tensor] | None = None

    @property
    def T(self) -> LabelExclusion:
        return LabelExclusion(self.labels[::-1], None if self.exception_labels is None else self.exception_labels[::-1])

    def take_rows(self, rows: Indices) -> LabelExclusion:
        exceptions = self.exception_labels
        exceptions = None if exceptions is None else (exceptions[0][rows], exceptions[1])
        return LabelExclusion((self.labels[0][rows], self.labels[1]), exceptions)

    def take_rows_and_columns(self, rows: Indices, columns: Indices) -> LabelExclusion:
        if not (rows is columns and self.is_symmetric):
            return super().take_rows_and_columns(rows, columns)
        # One tensor for both sides, by which the mask is recognized as symmetric.
        labels, exceptions = self.labels[0][rows], self.exception_labels
        taken = None if exceptions is None else exceptions[0][rows]
        return LabelExclusion((labels, labels), None if taken is None else (taken, taken))

    def append_columns(self, num_columns: int) -> LabelExclusion:
        (rows, old), exceptions = self.labels, self.exception_labels
        unused = (rows.amin() - 1).expand(num_columns)  # a label that no row has
        if exceptions is not None:
            exceptions = exceptions[0], torch.cat([exceptions[1], unused.to(exceptions[1])])
        return LabelExclusion((rows, torch.cat([old, unused])), exceptions)

    @property
    def is_symmetric(self) -> bool:
        exception_labels = self.exception_labels or (None, None)
        return self.labels[0] is self.labels[1] and exception_labels[0] is exception_labels[1]

    @cached_property
    def _cached_dense(self) -> Tensor:
        """Mask of all pairs as a Boolean tensor, (N, M), true where excluded; computed once."""
        with torch.inference_mode(False):  # an inference tensor could not be saved for a later backward
            return super().dense()

    def dense(self) -> Tensor:
        small = len(self.labels[0]) * len(self.labels[1]) <= 1 << 16  # 64 KiB
        return self._cached_dense if small and not torch.compiler.is_compiling() else super().dense()

    def tile(self, rows: slice, columns: slice) -> Tensor:
        excluded = self.labels[0][rows, None] == self.labels[1][columns]
        if self.exception_labels is None:
            return excluded
        return excluded & (self.exception_labels[0][rows, None] != self.exception_labels[1][columns])

    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        excluded = self.labels[0][rows] == self.labels[1][columns]
        if self.exception_labels is None:
            return excluded
        return excluded & (self.exception_labels[0][rows] != self.exception_labels[1][columns])


@dataclass(frozen=True, eq=False)
class SimilarityExclusion(PairExclusion):
    """Mask that excludes pairs whose similarity in another space exceeds a limit.

    Pairs with equal exception labels are kept. The pair (i, j) is excluded where <x_i, y_j> > r_i + c_j; it costs a
    product within a tile and O((N + M) k) memory. A limit belongs to a row, so that the mask is not symmetric.

    Attributes:
        features: Constant features of the rows, (N, k), and of the columns, (M, k).
        limit_summands: Row part, (N,), and column part, (M,), of the limit; the limit of a pair is their sum.
        exception_labels: Exception labels of the rows, (N,), and of the columns, (M,); pairs with equal ones are kept.
    """

    features: tuple[Tensor, Tensor]
    limit_summands: tuple[Tensor, Tensor]
    exception_labels: tuple[Tensor, Tensor]

    @property
    def T(self) -> SimilarityExclusion:
        return SimilarityExclusion(self.features[::-1], self.limit_summands[::-1], self.exception_labels[::-1])

    def take_rows(self, rows: Indices) -> SimilarityExclusion:
        (x, y), (r, c), (row_labels, column_labels) = self.features, self.limit_summands, self.exception_labels
        return SimilarityExclusion((x[rows], y), (r[rows], c), (row_labels[rows], column_labels))

    def append_columns(self, num_columns: int) -> SimilarityExclusion:
        (x, y), (r, c), (row_labels, column_labels) = self.features, self.limit_summands, self.exception_labels
        unused = (row_labels.amin() - 1).expand(num_columns).to(column_labels)
        return SimilarityExclusion(
            (x, torch.cat([y, y.new_zeros(num_columns, y.shape[1])])),
            (r, torch.cat([c, c.new_full((num_columns,), torch.inf)])),
            (row_labels, torch.cat([column_labels, unused])),
        )

    def tile(self, rows: slice, columns: slice) -> Tensor:
        (x, y), (r, c), (row_labels, column_labels) = self.features, self.limit_summands, self.exception_labels
        exceeds: Tensor = torch.mm(x[rows], y[columns].T) > r[rows, None] + c[columns]
        return exceeds & (row_labels[rows, None] != column_labels[columns])

    def gather_entries(self, rows: Tensor, columns: Tensor) -> Tensor:
        (x, y), (r, c), (row_labels, column_labels) = self.features, self.limit_summands, self.exception_labels
        exceeds: Tensor = torch.linalg.vecdot(x[rows], y[columns]) > r[rows] + c[columns]
        return exceeds & (row_labels[rows] != column_labels[columns])


@keep_deprecated_attributes(
    has_positive_sums="has_finite_log_sums", reduce_to_pass_inputs="to_custom_op_input",
    gather_entries="gather_log_kernel",
)  # fmt: skip
@dataclass(frozen=True, eq=False)
class Geometry:
    """Log-kernel between rows and columns, with masks of excluded pairs.

    Attributes:
        log_kernel: Log-kernel between the rows and the columns, (N, M).
        masks: Masks of excluded pairs; a pair is excluded if any mask excludes it.
        has_no_empty_row_or_column: Whether every row and every column has a pair that no mask excludes; False if
            unknown.
    """

    log_kernel: LogKernel
    masks: tuple[PairExclusion, ...] = ()
    has_no_empty_row_or_column: bool = False

    @property
    def has_finite_log_sums(self) -> bool:
        """True if the log-sum-exp of every row and column is known to be finite."""
        return self.has_no_empty_row_or_column and self.log_kernel.is_always_finite

    @property
    def shape(self) -> tuple[int, int]:
        return self.log_kernel.shape

    @property
    def T(self) -> Geometry:
        return Geometry(self.log_kernel.T, tuple(mask.T for mask in self.masks), self.has_no_empty_row_or_column)

    def to_custom_op_input(self) -> Geometry:
        """Return the same geometry, with tensors that can be passed to a custom torch operator."""
        return Geometry(self.log_kernel.to_custom_op_input(), self.masks, self.has_no_empty_row_or_column)

    def take_rows(self, rows: slice) -> Geometry:
        return Geometry(self.log_kernel.take_rows(rows), tuple(mask.take_rows(rows) for mask in self.masks))

    def gather_log_kernel(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log K of the pairs with given indices, minus infinity where masked."""
        value = self.log_kernel.gather_entries(rows, columns)
        for mask in self.masks:
            value = value.masked_fill(mask.gather_entries(rows, columns), -torch.inf)
        return value

    def dense(self) -> Tensor:
        """Return log K as an (N, M) tensor, minus infinity where masked."""
        value = self.log_kernel.dense()
        for mask in self.masks:
            value = value.masked_fill(mask.dense(), -torch.inf)
        return value

    def with_link(
        self, link: Link | None, *, factor: float | Tensor = 1.0, row_shift: Tensor | None = None
    ) -> Geometry:
        """Return the geometry with another link function in its log-kernel."""
        return Geometry(
            self.log_kernel.with_link(link, factor=factor, row_shift=row_shift),
            self.masks,
            self.has_no_empty_row_or_column,
        )

    @property
    def is_symmetric(self) -> bool:
        """True if (i, j) and (j, i) are known to have equal kernel values and masks."""
        return self.log_kernel.is_symmetric and all(mask.is_symmetric for mask in self.masks)
