"""Base classes of target transport plans, and the target of paired views.

Target plans never enter a pass over the pairs: divergences need only row sums of a target plan against a log-kernel or
a plan, which each form computes in its own way. All targets can then share the passes, whose memory stays O(N + M).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine import (
    Indices,
    LogKernel,
    checkpoint_row_blocks,
    constant_vector,
    disable_autocast_in_grad_fn,
    traceable_log,
)
from contraport.errors import UsageError
from contraport.objectives.equal_label_pairs import PairSet
from contraport.objectives.inputs import Attributes, CallInputs
from contraport.objectives.layouts import Block, BooleanFieldCheckMixin, PairPattern
from contraport.options import keep_deprecated_attributes

if TYPE_CHECKING:
    from contraport.objectives.plan import Plan


class TargetPlan(ABC):
    """Base class of target plans p, nonnegative (N, M) matrices in compact form."""

    @abstractmethod
    def apply(self, y: Tensor) -> Tensor:
        """Multiply the target plan by values y of shape (M, ...), giving (N, ...)."""

    @abstractmethod
    def row_mass(self) -> Tensor:
        """Return the mass of each row, (N,)."""

    @abstractmethod
    def row_negative_entropy(self) -> Tensor:
        """Return the negative entropy of each row, sum_j p_ij log p_ij, (N,)."""

    @abstractmethod
    def row_squared_norm(self) -> Tensor:
        """Return the squared Euclidean norm of each row, sum_j p_ij^2, (N,)."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the plan as an (N, M) tensor."""

    @abstractmethod
    def take_rows(self, rows: slice) -> TargetPlan:
        """Return the plan restricted to some of its rows."""

    def take_rows_and_columns(self, rows: Indices, columns: Indices) -> TargetPlan:
        """Return the plan restricted to some of its rows and columns."""
        return DenseTargetPlan(self.dense()[rows][:, columns])

    @abstractmethod
    def scale_rows(self, factors: Tensor) -> TargetPlan:
        """Return the plan with its rows multiplied by nonnegative `factors`, (N,)."""

    @abstractmethod
    def append_columns(self, num_columns: int) -> TargetPlan:
        """Return the plan with zero-mass columns appended."""

    def row_products_with_log_kernel(self, log_kernel: LogKernel) -> Tensor:
        """Return sum_j p_ij log K_ij per row, (N,), with the log-kernel before masking."""
        return log_kernel.row_sums_of_weighted_log_kernel(self)

    def row_relative_entropy(
        self, log_kernel: LogKernel, row_potential: Tensor | None, column_potential: Tensor | None
    ) -> Tensor:
        """Return each target row's relative entropy with respect to the solved plan, (N,).

        It is sum_j p_ij log(p_ij / P_ij) with P = exp(log K + f + g), where f and g are the potentials. Masks are
        ignored; a potential of None is zero.
        """
        entropy = self.row_negative_entropy() - self.row_products_with_log_kernel(log_kernel)
        if row_potential is not None:
            entropy = torch.addcmul(entropy, self.row_mass(), row_potential, value=-1)
        return entropy if column_potential is None else entropy - self.apply(column_potential)

    def row_sums_over_support(
        self, plan: Plan, function_of_target_and_log_plan: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Return row sums, (N,), of a function over entries with positive target mass."""
        function = function_of_target_and_log_plan

        def sum_block(rows: slice) -> Tensor:
            matrix = self.take_rows(rows).dense()
            positive = matrix > 0
            # Double where: entries without mass are replaced before the function too, as their gradient may be NaN.
            log_plan = torch.where(positive, plan.take_rows(rows).log_dense(), 0)
            return torch.where(positive, function(torch.where(positive, matrix, 1), log_plan), 0).sum(1)

        return checkpoint_row_blocks(sum_block, *plan.shape)

    def target_weighted_row_sums(self, plan: Plan, function_of_log_plan: Callable[[Tensor], Tensor]) -> Tensor:
        """Return row sums, (N,), of target times a function of the log plan."""
        return self.row_sums_over_support(plan, lambda mass, log_plan: mass * function_of_log_plan(log_plan))


@keep_deprecated_attributes(transpose="for_transposed_block", requires_features="requires_features_argument")
class Target(BooleanFieldCheckMixin, ABC):
    """Base class of targets, which define the transport plan that training aims at.

    Attributes:
        positives_from_views: Whether the views of an item are its positives, so that several views are needed.
        fills_all_rows: Whether no row needs a weight if all views are present, as each has target mass, or as the
            total mass is 1 in any case.
        read_attributes: Names of the attributes of items that the target reads, of ``labels``, ``domains`` and
            ``features``; by default it may read all. A call refuses those that nothing reads.
    """

    read_attributes: ClassVar[tuple[str, ...]] = ("labels", "domains", "features")
    positives_from_views: ClassVar[bool] = False
    fills_all_rows: ClassVar[bool] = False

    @property
    def requires_features_argument(self) -> bool:
        """True if the target requires the argument ``features=`` of a call."""
        return False

    @abstractmethod
    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan, of total mass equal to the share of rows with positives."""

    def for_transposed_block(self) -> Target:
        """Return the target for a block whose rows and columns are exchanged."""
        return self

    @property
    def description_equal_on_all_processes(self) -> str:
        """Description of the target, checked to be equal on all processes."""
        return type(self).__name__

    def check_inputs(self, inputs: CallInputs) -> None:
        """Raise `UsageError` if the target cannot be used with this process's items."""

    def gather_across_processes(self, processes: Processes, inputs: CallInputs) -> Target:
        """Return the target for the items of all processes, unchanged by default."""
        return self

    def with_gathered_rows(self) -> Target:
        """Return the target with the rows of all processes concatenated.

        Raises:
            UsageError: the rule applies to items only.
        """
        raise UsageError(f"target: must be a matrix with shared columns, got {self!r}.", kind="shared_columns")


@dataclass(frozen=True, eq=False)
class SparseTargetPlan(TargetPlan):
    """Sparse target plan, with values[k] at (rows[k], columns[k]).

    Attributes:
        one_entry_per_row: Whether entry k is the only one of row k.
        cached_negative_entropy: Negative entropy of each row, (N,), if known; else None.
    """

    rows: Tensor
    columns: Tensor
    values: Tensor
    shape: tuple[int, int]
    one_entry_per_row: bool = False
    cached_negative_entropy: Tensor | None = None

    def _sum_by_row(self, values: Tensor) -> Tensor:
        """Return row sums, (N, ...), of values (k, ...) at the nonzero entries."""
        if self.one_entry_per_row:
            return values
        return values.new_zeros(self.shape[0], *values.shape[1:]).index_add(0, self.rows, values)

    def apply(self, y: Tensor) -> Tensor:
        return self._sum_by_row(_scale_rows(y[self.columns], self.values.to(y.dtype)))

    def row_mass(self) -> Tensor:
        return self._sum_by_row(self.values)

    def row_negative_entropy(self) -> Tensor:
        if self.cached_negative_entropy is not None:
            return self.cached_negative_entropy
        return self._sum_by_row(_elementwise_p_log_p(self.values))

    def row_squared_norm(self) -> Tensor:
        return self._sum_by_row(self.values.square())

    def row_products_with_log_kernel(self, log_kernel: LogKernel) -> Tensor:
        return self._sum_by_row(self.values * self.gather_log_kernel_entries(log_kernel))

    def row_relative_entropy(
        self, log_kernel: LogKernel, row_potential: Tensor | None, column_potential: Tensor | None
    ) -> Tensor:
        entries = self.gather_log_kernel_entries(log_kernel)
        if row_potential is not None:
            entries = entries + (row_potential if self.one_entry_per_row else row_potential[self.rows])
        entries = entries if column_potential is None else entries + column_potential[self.columns]
        if self.one_entry_per_row:
            return torch.addcmul(self.row_negative_entropy(), self.values, entries, value=-1)
        return self.row_negative_entropy() - self._sum_by_row(self.values * entries)

    def gather_log_kernel_entries(self, log_kernel: LogKernel) -> Tensor:
        """Return log K at the nonzero entries of the target plan, (k,)."""
        if self.one_entry_per_row:
            return log_kernel.gather_one_per_row(self.columns, diagonal=self.rows is self.columns)
        return log_kernel.gather_entries(self.rows, self.columns)

    def row_sums_over_support(
        self, plan: Plan, function_of_target_and_log_plan: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        positive = self.values > 0
        terms = function_of_target_and_log_plan(
            torch.where(positive, self.values, 1), plan.log_at(self.rows, self.columns)
        )
        return self._sum_by_row(torch.where(positive, terms, 0))

    def dense(self) -> Tensor:
        return self.values.new_zeros(self.shape).index_put((self.rows, self.columns), self.values, accumulate=True)

    def take_rows(self, rows: slice) -> SparseTargetPlan:
        top, bottom, _ = rows.indices(self.shape[0])
        here = (self.rows >= top) & (self.rows < bottom)
        shape = bottom - top, self.shape[1]
        return SparseTargetPlan(self.rows[here] - top, self.columns[here], self.values[here], shape)

    def scale_rows(self, factors: Tensor) -> SparseTargetPlan:
        return replace(self, values=self.values * factors[self.rows], cached_negative_entropy=None)

    def append_columns(self, num_columns: int) -> SparseTargetPlan:
        return replace(self, shape=(self.shape[0], self.shape[1] + num_columns))


@dataclass(frozen=True, eq=False)
class DenseTargetPlan(TargetPlan):
    """Dense target plan, stored as an (N, M) matrix."""

    matrix: Tensor

    def apply(self, y: Tensor) -> Tensor:
        return disable_autocast_in_grad_fn(self.matrix.to(y.dtype) @ y)

    def row_mass(self) -> Tensor:
        return self.matrix.sum(1)

    def row_negative_entropy(self) -> Tensor:
        return _elementwise_p_log_p(self.matrix).sum(1)

    def row_squared_norm(self) -> Tensor:
        return self.matrix.square().sum(1)

    def dense(self) -> Tensor:
        return self.matrix

    def take_rows(self, rows: slice) -> DenseTargetPlan:
        return DenseTargetPlan(self.matrix[rows])

    def scale_rows(self, factors: Tensor) -> DenseTargetPlan:
        return DenseTargetPlan(self.matrix * factors[:, None])

    def append_columns(self, num_columns: int) -> DenseTargetPlan:
        return DenseTargetPlan(F.pad(self.matrix, (0, num_columns)))


@dataclass(frozen=True, eq=False)
class PiecewiseConstantTargetPlan(TargetPlan):
    """Target plan that is constant on sets of pairs, up to a factor for each row.

    The plan is p_ij = r_i sum_k level_k [(i, j) in set k].

    Attributes:
        level_sets: Disjoint sets of pairs, at least one, each with its level, the positive value of the plan there.
        row_scale: Factor r of each row, (N,).
        cached_row_mass: Mass of each row, (N,), if known; else None.
        num_appended_columns: Number of columns without mass that follow those of the sets.
    """

    level_sets: tuple[tuple[float, PairSet], ...]
    row_scale: Tensor
    cached_row_mass: Tensor | None = None
    num_appended_columns: int = 0

    def apply(self, y: Tensor) -> Tensor:
        y = y[: -self.num_appended_columns] if self.num_appended_columns else y
        return _scale_rows(self._apply_without_row_scale(y), self.row_scale.to(y.dtype))

    def _apply_without_row_scale(self, y: Tensor) -> Tensor:
        """Multiply the plan, without its row scale, by `y`."""
        parts = [pairs.apply(y) if level == 1 else level * pairs.apply(y) for level, pairs in self.level_sets]
        return sum(parts[1:], parts[0])

    def row_mass(self) -> Tensor:
        if self.cached_row_mass is not None:
            return self.cached_row_mass
        return self.row_scale * self._apply_without_row_scale(self._column_ones())

    def _column_ones(self) -> Tensor:
        """Return a vector of ones, one per column of the plan."""
        return constant_vector(self.level_sets[0][1].shape[1], 1.0, self.row_scale)

    def row_negative_entropy(self) -> Tensor:
        # p log p with log p = log r_i + log level_k: each part is a sum over the plan's own sets.
        entropy = torch.xlogy(self.row_mass(), self.row_scale)
        for level, pairs in self.level_sets:
            if level != 1:
                entropy = entropy + level * math.log(level) * (self.row_scale * pairs.apply(self._column_ones()))
        return entropy

    def row_squared_norm(self) -> Tensor:
        squared = tuple((level**2, pairs) for level, pairs in self.level_sets)
        return PiecewiseConstantTargetPlan(squared, self.row_scale.square()).row_mass()

    def dense(self) -> Tensor:
        total = sum(level * pairs.dense().to(self.row_scale) for level, pairs in self.level_sets)
        return F.pad(self.row_scale[:, None] * total, (0, self.num_appended_columns))

    def take_rows(self, rows: slice) -> PiecewiseConstantTargetPlan:
        levels = tuple((level, pairs.take_rows(rows)) for level, pairs in self.level_sets)
        return replace(self, level_sets=levels, row_scale=self.row_scale[rows], cached_row_mass=None)

    def take_rows_and_columns(self, rows: Indices, columns: Indices) -> PiecewiseConstantTargetPlan:
        levels = tuple((level, pairs.take_rows_and_columns(rows, columns)) for level, pairs in self.level_sets)
        return replace(self, level_sets=levels, row_scale=self.row_scale[rows], cached_row_mass=None)

    def scale_rows(self, factors: Tensor) -> PiecewiseConstantTargetPlan:
        mass = None if self.cached_row_mass is None else self.cached_row_mass * factors
        return replace(self, row_scale=self.row_scale * factors, cached_row_mass=mass)

    def append_columns(self, num_columns: int) -> PiecewiseConstantTargetPlan:
        return replace(self, num_appended_columns=self.num_appended_columns + num_columns)


@dataclass(frozen=True, repr=False)
class Pairs(Target):
    """Target whose positives are the other views of the same item.

    Each row has mass 1/N, divided equally.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Pairs()(block, {}).dense()
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ()
    positives_from_views: ClassVar[bool] = True
    fills_all_rows: ClassVar[bool] = True

    def __call__(self, block: Block, attributes: Attributes) -> SparseTargetPlan:
        pattern, dtype = block.pattern, block.compute_dtype
        return pattern.compute_once((Pairs, dtype), lambda: _build_positives_target(pattern, dtype))


def _build_positives_target(pattern: PairPattern, dtype: torch.dtype) -> SparseTargetPlan:
    """Build the sparse target plan that divides 1/N equally among each row's positives."""
    (rows, columns), n = pattern.positives, pattern.shape[0]
    values = torch.full((len(rows),), 1 / n, dtype=dtype, device=rows.device)
    if pattern.one_positive_per_row:
        return SparseTargetPlan(rows, columns, values, pattern.shape, True, values * -traceable_log(n, values))
    counts = torch.zeros_like(pattern.row_items).index_add(0, rows, torch.ones_like(rows))
    return SparseTargetPlan(rows, columns, values / counts[rows], pattern.shape)


def _elementwise_p_log_p(mass: Tensor) -> Tensor:
    """Return p log p elementwise, with gradient 0 at p = 0."""
    return torch.xlogy(mass, mass.masked_fill(mass == 0, 1))


def _scale_rows(values: Tensor, factors: Tensor) -> Tensor:
    """Multiply each row of values, (N, ...), by a factor, (N,)."""
    return factors.view(-1, *[1] * (values.ndim - 1)) * values


def scale_rows_to_uniform_marginal(masses: Tensor) -> Tensor:
    """Scale each row of masses, (N, M), to total mass 1/N."""
    total = masses.sum(1, keepdim=True)
    return masses / (torch.where(total > 0, total, 1) * len(masses))
