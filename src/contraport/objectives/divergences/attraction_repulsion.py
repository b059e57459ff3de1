"""Attraction and repulsion, each by itself: what is wanted does not compete with what is compared.

Where both look at the same pairs, one is an objective's divergence and the other its penalty; where they do not, they
are two objectives of a `SumLoss`. They judge the kernel, so that their constraint is `Free`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import LogFunction, log_sums
from contraport.errors import UsageError, check, check_positive
from contraport.objectives.constraints import Constraint, Free, Rows, Simplex
from contraport.objectives.divergences.costs import by_cost
from contraport.objectives.divergences.divergence import Divergence, require_negatives
from contraport.objectives.plan import BlockResult, Plan
from contraport.objectives.repr_mixin import ReprMixin
from contraport.objectives.targets.target import SparseTarget


@dataclass(frozen=True, repr=False)
class KernelAlignment(ReprMixin, Divergence):
    """Minus the kernel on the wanted pairs, -<t, K>: an attraction that lets go of pairs that are far apart.

    Source: the alignment of kernel contrastive learning, Koromilas et al. (2024).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.KernelAlignment())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -1.0
    """

    depends_on_constraint: ClassVar[bool] = False
    repels: ClassVar[bool] = False

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return minus the kernel that each row wants."""
        f, g = torch.zeros_like(outcome.plan.f), torch.zeros_like(outcome.plan.g)
        return -outcome.target.row_expectation(Plan(outcome.plan.geometry, f, g), torch.exp)


@dataclass(frozen=True, repr=False)
class LogKernelAlignment(ReprMixin, Divergence):
    """Minus the log of the sum of the kernel over the pairs of views of an item; of two views, minus the log-kernel.

    Several pairs are added up before the logarithm is taken, so that those that agree best are drawn together first.

    Args:
        sigma: weigh each of the n items by 2 - n softmax_i(s_i / sigma), held fixed, s_i the similarity of its views
            (minus the cost): pairs that agree least count most. None weighs all alike.

    Raises:
        UsageError: sigma is not positive; in the call, the target is not given by its entries, as `Pairs` is.

    Source: Koromilas et al. (2025), MV-DHEL; with sigma, Yeh et al. (2022), Decoupled contrastive learning, eq. 7.

    >>> import torch, contraport as cp
    >>> kernel = cp.Gibbs("negative-cosine", 0.5)
    >>> loss = cp.Objective(cp.Cross(), kernel, cp.Free(), cp.Pairs(), cp.LogKernelAlignment())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -2.0
    """

    depends_on_constraint: ClassVar[bool] = False
    repels: ClassVar[bool] = False

    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None:
            check_positive("sigma", self.sigma)

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return for each row the value of its item, times what the row wants."""
        target, log_kernel = outcome.target, outcome.plan.geometry.log_kernel
        if not isinstance(target, SparseTarget):
            raise UsageError(f"target: Agreement expects pairs, given by their entries, got {type(target).__name__}.")
        items, size = outcome.block.pattern.row_items, outcome.block.pattern.size
        entries = target.along(log_kernel) if target.in_order else log_kernel.at(target.rows, target.columns)
        total, pairs = log_mean_by(items[target.rows], entries, target.values, size)
        # Where each view of an item has its row, a pair stands there both ways.
        rows = torch.zeros_like(pairs).index_add(0, items, pairs.new_ones(len(items)))
        total = total + torch.where(rows > 1, pairs / 2, pairs).clamp_min(1).log()
        if self.sigma is not None:
            with torch.no_grad():
                wanted = pairs > 0
                similarity = (total * (log_kernel.unit / self.sigma)).masked_fill(~wanted, -torch.inf)
                weight = torch.where(wanted, 2 - wanted.sum() * similarity.softmax(0), 0)
            total = total * weight.detach()  # forward mode takes no notice of no_grad
        return -target.row_mass() * total[items]


@dataclass(frozen=True, repr=False)
class LogSumKernel(ReprMixin, Divergence):
    """log sum_j K_ij over what a row is compared with, averaged over the rows: the denominator of InfoNCE.

    Args:
        pooled: add up the rows of an item, one of each view, before the logarithm is taken: one denominator of an item.

    Raises:
        UsageError: the constraint gives the columns potentials; in the call, there is nothing to compare with (one
            item).

    Source: pooled, Li et al. (2023), Towards general text embeddings (GTE).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.LogSumKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5514
    """

    depends_on_constraint: ClassVar[bool] = False

    pooled: bool = False

    def __post_init__(self) -> None:
        check(isinstance(self.pooled, bool), f"pooled: expected True or False, got {self.pooled!r}.")

    def mismatch(self, constraint: Constraint) -> str | None:
        # Potentials of columns are known up to a factor, which those of the rows undo: here nothing would.
        if isinstance(constraint, Free | Rows | Simplex):
            return None
        return f"LogSumKernel adds up the kernel itself, so that it belongs to the constraint Free, got {constraint!r}."

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the log-sum of each row, or of its item."""
        log_sums = outcome.plan.log_row_mass() - outcome.plan.f
        if self.pooled:
            pattern = outcome.block.pattern
            log_sums = log_sum_by(pattern.row_items, log_sums, pattern.size)[pattern.row_items]
        return _of_rows(outcome, log_sums)


@dataclass(frozen=True, repr=False)
class MeanKernel(ReprMixin, Divergence):
    """The mean of the kernel over what a row is compared with, averaged over the rows.

    Raises:
        UsageError: in the call, there is nothing to compare with (one item).

    Source: the uniformity of kernel contrastive learning, Koromilas et al. (2024).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.MeanKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5786
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the mean of each row."""
        return _of_rows(outcome, torch.exp(outcome.plan.log_row_sums() - log_counts(outcome)))


@dataclass(frozen=True, repr=False)
class MeanSquaredCost(ReprMixin, Divergence):
    """The mean of the squared cost over what a row is compared with, averaged over the rows.

    With the cost -cos it makes other items orthogonal.

    Args:
        summed: add up what a row is compared with rather than average it.

    Raises:
        UsageError: in the call, there is nothing to compare with (one item).

    Source: the repulsion of the spectral contrastive loss, HaoChen et al. (2021), eq. 6.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("negative-cosine", 1.0), cp.Free(), cp.Pairs(), cp.MeanSquaredCost())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.3333
    """

    depends_on_constraint: ClassVar[bool] = False
    has_temperature_gradient: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    summed: bool = False

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the mean, or the sum, of each row."""
        plan = outcome.plan
        squares = log_sums(plan.geometry.with_link(SQUARE), "rows")
        squares = squares if self.summed else squares - log_counts(outcome)
        return _of_rows(outcome, plan.cost_kernel.unit**2 * torch.exp(squares))


@dataclass(frozen=True, repr=False)
class VarianceHinge(ReprMixin, Divergence):
    """What is missing from a standard deviation of 1 on the wanted pairs, <t, [1 - sqrt(-C + epsilon)]_+>.

    For `WithinView` over `Coordinates` with the cost ``"dot"``: minus the cost of a coordinate is its variance.

    Args:
        epsilon: keeps the slope of the root finite, positive.

    Raises:
        UsageError: epsilon is not positive.

    Source: Bardes, Ponce and LeCun (2022), VICReg, eq. 1.

    >>> import torch, contraport as cp
    >>> layout = cp.Coordinates(cp.WithinView())
    >>> loss = cp.Objective(layout, cp.Gibbs("dot", 1.0), cp.Free(), cp.Pairs(), cp.VarianceHinge())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4226
    """

    depends_on_constraint: ClassVar[bool] = False
    has_temperature_gradient: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return what each row misses."""
        kernel = outcome.plan.cost_kernel
        return by_cost(outcome, lambda t: F.relu(1 - torch.sqrt(kernel.unit * t + self.epsilon)))


SQUARE = LogFunction(torch.square)


def log_counts(outcome: BlockResult) -> Tensor:
    """Return the log of how many columns each row is compared with, (N,), 0 where it is none."""
    compared = outcome.block.pattern.compared()
    return compared.counts(outcome.plan.f).clamp_min(1).log()


def _of_rows(outcome: BlockResult, values: Tensor) -> Tensor:
    """Return the values of the rows, (N,), by what they want; a row that is compared with nothing adds nothing."""
    require_negatives(outcome)
    a = outcome.target.row_mass()
    return a * torch.where((a > 0) & (values != -torch.inf), values, 0)


def log_mean_by(groups: Tensor, values: Tensor, weights: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the log of the weighted mean of exp(values) in each group, 0 in an empty one, and how many there are.

    Args:
        groups: of each value, (k,).
        values: (k,).
        weights: positive, (k,).
        size: the number of groups.
    """
    zeros = values.new_zeros(size)
    counts = zeros.index_add(0, groups, torch.ones_like(values))
    mass = zeros.index_add(0, groups, weights.to(values)).masked_fill(counts == 0, 1)
    total = log_sum_by(groups, values + weights.to(values).log(), size)
    return total.masked_fill(counts == 0, 0) - mass.log(), counts


def log_sum_by(groups: Tensor, values: Tensor, size: int) -> Tensor:
    """Return the log of the sum of exp(values) in each group, (size,); minus infinity where nothing is summed."""
    with torch.no_grad():
        top = values.new_full((size,), -torch.inf).scatter_reduce(0, groups, values, "amax")
        top = top.masked_fill(top == -torch.inf, 0)
    total = values.new_zeros(size).index_add(0, groups, torch.exp(values - top[groups]))
    nothing = total == 0
    return (total.masked_fill(nothing, 1).log() + top).masked_fill(nothing, -torch.inf)
