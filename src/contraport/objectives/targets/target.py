"""Targets: rules for the plan that is wanted, and its forms: by its entries, by groups of equal labels, as a matrix."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine import LogKernel, constant, disable_autocast_in_backward, map_row_blocks
from contraport.errors import UsageError
from contraport.objectives.inputs import Attributes, CallInputs
from contraport.objectives.layouts import Block
from contraport.objectives.pair_masks import PairIndicator
from contraport.objectives.repr_mixin import ReprMixin


class LogPlan(Protocol):
    """The logarithm of a plan, (N, M), known where it is asked for: what a target wants to know of a plan."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""

    def restrict(self, rows: slice) -> LogPlan:
        """Return it on some of its rows."""

    def log_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log P at the given entries: index tensors (k,) to a tensor (k,)."""

    def log_dense(self) -> Tensor:
        """Return log P as an (N, M) tensor."""


class TargetPlan(ABC):
    """The plan that is wanted on one block: an (N, M) matrix of nonnegative numbers, in whatever form is cheap."""

    @abstractmethod
    def apply(self, y: Tensor) -> Tensor:
        """Return the plan times y: (M, ...) to (N, ...)."""

    @abstractmethod
    def row_mass(self) -> Tensor:
        """Return the mass of the rows, (N,)."""

    @abstractmethod
    def row_entropy(self) -> Tensor:
        """Return -sum_j p_ij log p_ij, (N,)."""

    @abstractmethod
    def row_square_mass(self) -> Tensor:
        """Return sum_j p_ij^2, (N,)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return it as an (N, M) tensor."""

    @property
    @abstractmethod
    def T(self) -> TargetPlan:
        """The same plan with rows and columns exchanged."""

    @abstractmethod
    def restrict(self, rows: slice) -> TargetPlan:
        """Return the plan on some of its rows."""

    @abstractmethod
    def times(self, factors: Tensor) -> TargetPlan:
        """Return the plan with each row times its factor, (N,), nonnegative."""

    @abstractmethod
    def beside(self, columns: int) -> TargetPlan:
        """Return the plan with so many further columns, on which it has no mass."""

    def row_inner_products(self, log_kernel: LogKernel) -> Tensor:
        """Return sum_j p_ij log K_ij, (N,), masks aside."""
        return log_kernel.row_inner_products(self)

    def row_log(self, log_kernel: LogKernel, f: Tensor | None, g: Tensor | None) -> Tensor:
        """Return sum_j p_ij (log K_ij + f_i + g_j), (N,), masks aside; None is zero."""
        inner = self.row_inner_products(log_kernel)
        inner = inner if f is None else inner + self.row_mass() * f
        return inner if g is None else inner + self.apply(g)

    def row_sum(self, plan: LogPlan, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Return sum_j function(p_ij, log P_ij), (N,), P another plan, over the entries where this one has mass."""

        def summed(rows: slice) -> Tensor:
            matrix = self.restrict(rows).dense()
            wanted = matrix > 0
            log_plan = torch.where(wanted, plan.restrict(rows).log_dense(), 0)
            return torch.where(wanted, function(torch.where(wanted, matrix, 1), log_plan), 0).sum(1)

        return torch.cat(map_row_blocks(summed, plan.shape))

    def row_expectation(self, plan: LogPlan, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return sum_j p_ij function(log P_ij), (N,), P another plan, where this one has mass."""
        return self.row_sum(plan, lambda wanted, log_found: wanted * function(log_found))


class Target(ReprMixin, ABC):
    """A rule that says which plan is wanted on a block, from what is known of the items.

    Attributes:
        positives_from_views: whether the views alone say what is wanted, so that there must be several, of the same
        items.
        complete: whether the plan has all its mass where all views are there: no row may turn out to want nothing.
    """

    positives_from_views: ClassVar[bool] = False
    complete: ClassVar[bool] = False

    @property
    def requires_features(self) -> bool:
        """Whether it needs ``features=`` of the call."""
        return False

    @abstractmethod
    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of total mass 1, less where some rows have nothing that they could want."""

    def mirrored(self) -> Target:
        """Return the rule for the same block with rows and columns exchanged."""
        return self

    @property
    def form(self) -> str:
        """The kind of the target, on which the processes of a call must agree."""
        return type(self).__name__

    def check_call(self, call: CallInputs) -> None:
        """Raise `UsageError` where the target does not fit the items of this process; nothing is gathered."""

    def among(self, processes: Processes, call: CallInputs) -> Target:
        """Return the rule for the items of all processes, where it names items by their place in this one's call."""
        return self

    def gathered(self) -> Target:
        """Return the rule with what it knows of each process's rows, for columns that show no items.

        Raises:
            UsageError: it is a rule about items.
        """
        raise UsageError(f"target: nothing is positive with shared columns; expected a matrix, got {self!r}.")


@dataclass(frozen=True, eq=False)
class SparseTarget(TargetPlan):
    """A target plan by its nonzero entries: p at (rows[k], columns[k]) is values[k].

    Attributes:
        in_order: whether entry k is the one of row k.
        cached_row_entropy: -sum_j p_ij log p_ij, (N,), where it is known.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    shape: tuple[int, int]
    in_order: bool = False
    cached_row_entropy: Tensor | None = None

    def _by_row(self, values: Tensor) -> Tensor:
        if self.in_order:
            return values
        return values.new_zeros(self.shape[0], *values.shape[1:]).index_add(0, self.rows, values)

    def apply(self, y: Tensor) -> Tensor:
        return self._by_row(_times(self.values.to(y.dtype), y[self.columns]))

    def row_mass(self) -> Tensor:
        return self._by_row(self.values)

    def row_entropy(self) -> Tensor:
        if self.cached_row_entropy is not None:
            return self.cached_row_entropy
        return -self._by_row(torch.xlogy(self.values, self.values))

    def row_square_mass(self) -> Tensor:
        return self._by_row(self.values.square())

    def row_inner_products(self, log_kernel: LogKernel) -> Tensor:
        return self.row_log(log_kernel, None, None)

    def row_log(self, log_kernel: LogKernel, f: Tensor | None, g: Tensor | None) -> Tensor:
        if self.in_order:
            entries = log_kernel.at_columns(self.columns, diagonal=self.rows is self.columns)
            entries = entries if f is None else entries + f
        else:
            entries = log_kernel.at(self.rows, self.columns)
            entries = entries if f is None else entries + f[self.rows]
        entries = self.values * (entries if g is None else entries + g[self.columns])
        return entries if self.in_order else self._by_row(entries)

    def along(self, log_kernel: LogKernel) -> Tensor:
        """Return log K at the entry of each row, (N,); the entries are to be in order."""
        return log_kernel.at_columns(self.columns, diagonal=self.rows is self.columns)

    def row_sum(self, plan: LogPlan, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        some = self.values > 0
        found = function(torch.where(some, self.values, 1), plan.log_at(self.rows, self.columns))
        return self._by_row(torch.where(some, found, 0))

    def dense(self) -> Tensor:
        return self.values.new_zeros(self.shape).index_put((self.rows, self.columns), self.values, accumulate=True)

    @property
    def T(self) -> SparseTarget:
        return SparseTarget(self.columns, self.rows, self.values, self.shape[::-1])

    def restrict(self, rows: slice) -> SparseTarget:
        top, bottom, _ = rows.indices(self.shape[0])
        here = (self.rows >= top) & (self.rows < bottom)
        shape = bottom - top, self.shape[1]
        return SparseTarget(self.rows[here] - top, self.columns[here], self.values[here], shape)

    def times(self, factors: Tensor) -> SparseTarget:
        return replace(self, values=self.values * factors[self.rows], cached_row_entropy=None)

    def beside(self, columns: int) -> SparseTarget:
        return replace(self, shape=(self.shape[0], self.shape[1] + columns))


@dataclass(frozen=True, eq=False)
class DenseTarget(TargetPlan):
    """A target plan as a matrix, (N, M)."""

    matrix: Tensor

    def apply(self, y: Tensor) -> Tensor:
        return disable_autocast_in_backward(self.matrix.to(y.dtype) @ y)

    def row_mass(self) -> Tensor:
        return self.matrix.sum(1)

    def row_entropy(self) -> Tensor:
        return -torch.xlogy(self.matrix, self.matrix).sum(1)

    def row_square_mass(self) -> Tensor:
        return self.matrix.square().sum(1)

    def dense(self) -> Tensor:
        return self.matrix

    @property
    def T(self) -> DenseTarget:
        return DenseTarget(self.matrix.T)

    def restrict(self, rows: slice) -> DenseTarget:
        return DenseTarget(self.matrix[rows])

    def times(self, factors: Tensor) -> DenseTarget:
        return DenseTarget(self.matrix * factors[:, None])

    def beside(self, columns: int) -> DenseTarget:
        return DenseTarget(F.pad(self.matrix, (0, columns)))


@dataclass(frozen=True, eq=False)
class StructuredTarget(TargetPlan):
    """A target plan that is constant on a few sets of pairs: p_ij = r_i c_j sum_k level_k [(i, j) in set k].

    Attributes:
        levels: each set, disjoint from the others, with its level, positive.
        row_scale: r, (N,).
        column_scale: c, (M,); None is 1 throughout.
        cached_row_mass: the mass of the rows, (N,), where it is known.
    """

    levels: tuple[tuple[float, PairIndicator], ...]
    row_scale: Tensor
    column_scale: Tensor | None = None
    cached_row_mass: Tensor | None = None

    def apply(self, y: Tensor) -> Tensor:
        if self.column_scale is not None:
            y = _times(self.column_scale.to(y.dtype), y)
        return _times(self.row_scale.to(y.dtype), self._spread(y))

    def _spread(self, y: Tensor) -> Tensor:
        """Return the sums of y over the sets, each times its level, for each row."""
        parts = [indicator.apply(y) if level == 1 else level * indicator.apply(y) for level, indicator in self.levels]
        return sum(parts[1:], parts[0]) if parts else y.new_zeros(len(self.row_scale), *y.shape[1:])

    def _of_columns(self) -> Tensor:
        """Return the scale of the columns, (M,)."""
        if self.column_scale is not None:
            return self.column_scale
        return constant(self.levels[0][1].shape[1], 1.0, self.row_scale)

    def row_mass(self) -> Tensor:
        if self.cached_row_mass is not None:
            return self.cached_row_mass
        return self.row_scale * self._spread(self._of_columns())

    def row_entropy(self) -> Tensor:
        # p log p with log p = log r_i + log c_j + log level_k, each part a sum against the plan's own structure
        entropy = -torch.xlogy(self.row_mass(), self.row_scale)
        if self.column_scale is not None:
            entropy = entropy - self.apply(torch.where(self.column_scale > 0, self.column_scale, 1).log())
        for level, indicator in self.levels:
            if level != 1:
                entropy = entropy - level * math.log(level) * self.row_scale * indicator.apply(self._of_columns())
        return entropy

    def row_square_mass(self) -> Tensor:
        squared = tuple((level**2, indicator) for level, indicator in self.levels)
        columns = None if self.column_scale is None else self.column_scale.square()
        return StructuredTarget(squared, self.row_scale.square(), columns).row_mass()

    def dense(self) -> Tensor:
        total = sum(level * indicator.dense().to(self.row_scale) for level, indicator in self.levels)
        return self.row_scale[:, None] * total * self._of_columns()

    @property
    def T(self) -> StructuredTarget:
        levels = tuple((level, indicator.T) for level, indicator in self.levels)
        return StructuredTarget(levels, self._of_columns(), self.row_scale)

    def restrict(self, rows: slice) -> StructuredTarget:
        levels = tuple((level, indicator.restrict(rows)) for level, indicator in self.levels)
        return StructuredTarget(levels, self.row_scale[rows], self.column_scale)

    def times(self, factors: Tensor) -> StructuredTarget:
        mass = None if self.cached_row_mass is None else self.cached_row_mass * factors
        return replace(self, row_scale=self.row_scale * factors, cached_row_mass=mass)

    def beside(self, columns: int) -> StructuredTarget:
        levels = tuple((level, indicator.beside(columns)) for level, indicator in self.levels)
        return StructuredTarget(levels, self.row_scale, F.pad(self._of_columns(), (0, columns)), self.cached_row_mass)


def _times(weights: Tensor, rows: Tensor) -> Tensor:
    return weights.view(-1, *[1] * (rows.ndim - 1)) * rows


def normalize_row_masses(wanted: Tensor) -> Tensor:
    """Return what is wanted, (N, M), with each row scaled to mass 1/N; a row that wants nothing stays so."""
    total = wanted.sum(1, keepdim=True)
    return wanted / (torch.where(total > 0, total, 1) * len(wanted))
