"""Attraction of positives and repulsion of compared pairs as separate terms of a loss.

If both are over the same pairs, one is an objective's divergence and the other its penalty; else they are two
objectives of a `SumLoss`. They depend on the kernel alone, so that their constraint is `Free`.
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
from contraport.objectives.divergences.costs import target_weighted_cost_sums
from contraport.objectives.divergences.divergence import Divergence, KernelDivergence, require_negatives
from contraport.objectives.plan import BlockResult, Plan
from contraport.objectives.repr_mixin import ReprMixin
from contraport.objectives.targets.target import SparseTarget

SQUARE = LogFunction(torch.square)


@dataclass(frozen=True, repr=False)
class KernelAttraction(ReprMixin, Divergence):
    """Attraction of the positives by the kernel (KCL): minus their mean kernel, -<t, K>.

    The attraction vanishes for distant pairs.

    Source: the alignment of kernel contrastive learning, Koromilas et al. (2024).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.KernelAttraction())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -1.0
    """

    depends_on_constraint: ClassVar[bool] = False
    repels: ClassVar[bool] = False

    def __call__(self, result: BlockResult) -> Tensor:
        # The plan with zero potentials is the kernel itself.
        f, g = torch.zeros_like(result.plan.f), torch.zeros_like(result.plan.g)
        return -result.target.row_expectation(Plan(result.plan.geometry, f, g), torch.exp)


@dataclass(frozen=True, repr=False)
class LogKernelAttraction(ReprMixin, Divergence):
    """Attraction of the positives by the log-kernel: minus the log of the kernel sum over the view pairs of an item.

    For two views it is minus the log-kernel of the positive.

    With more views, the pairs of an item that are most similar attract most.

    Args:
        sigma: weight each of the n items by 2 - n softmax_i(s_i / sigma), detached, s_i the similarity of its views
            (minus the cost): the least similar pairs count most. None weights all equally.

    Raises:
        UsageError: sigma is not positive; in the call, the target plan is not given by its entries, as that of `Pairs`.

    Source: Koromilas et al. (2025), MV-DHEL; with sigma, Yeh et al. (2022), Decoupled contrastive learning, eq. 7.

    >>> import torch, contraport as cp
    >>> kernel, alignment = cp.Gibbs("negative-cosine", 0.5), cp.LogKernelAttraction()
    >>> loss = cp.Objective(cp.Cross(), kernel, cp.Free(), cp.Pairs(), alignment)
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -2.0
    """

    depends_on_constraint: ClassVar[bool] = False
    repels: ClassVar[bool] = False

    sigma: float | None = None

    def __post_init__(self) -> None:
        if self.sigma is not None:
            check_positive("sigma", self.sigma)

    def __call__(self, result: BlockResult) -> Tensor:
        """Return for each row the attraction of its item, times the target mass of the row, (N,)."""
        target, log_kernel = result.target, result.plan.geometry.log_kernel
        if not isinstance(target, SparseTarget):
            got = type(target).__name__
            raise UsageError(f"target: must consist of pairs for LogKernelAttraction, got a {got}.", kind="conflict")
        items, size = result.block.pattern.row_items, result.block.pattern.num_items
        entries = target.log_entries(log_kernel)
        total, pairs = log_mean_exp_by_group(items[target.rows], entries, target.values, size)
        # If an item has a row for each view, each of its pairs occurs in both directions.
        rows = torch.zeros_like(pairs).index_add(0, items, pairs.new_ones(len(items)))
        total = total + torch.where(rows > 1, pairs / 2, pairs).clamp_min(1).log()
        if self.sigma is not None:
            with torch.no_grad():
                has_pairs = pairs > 0
                similarity = (total * (log_kernel.unit / self.sigma)).masked_fill(~has_pairs, -torch.inf)
                weight = torch.where(has_pairs, 2 - has_pairs.sum() * similarity.softmax(0), 0)
            total = total * weight.detach()  # forward-mode differentiation ignores no_grad
        return -target.row_mass() * total[items]


@dataclass(frozen=True, repr=False)
class LogSumKernel(ReprMixin, Divergence):
    """Log-denominator of InfoNCE: the log of the summed kernel over a row's compared pairs, averaged over rows.

    Args:
        pooled: sum over the rows of an item, one per view, before the logarithm: one denominator per item.

    Raises:
        UsageError: the constraint has column potentials; in the call, a single item.

    Source: pooled, Li et al. (2023), Towards general text embeddings (GTE).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.LogSumKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5514
    """

    depends_on_constraint: ClassVar[bool] = False

    pooled: bool = False

    def __post_init__(self) -> None:
        check(isinstance(self.pooled, bool), f"pooled: must be True or False, got {self.pooled!r}.")

    def constraint_conflict(self, constraint: Constraint) -> str | None:
        # Column potentials are only defined up to a factor, which row potentials compensate for; here nothing would.
        if isinstance(constraint, Free | Rows | Simplex):
            return None
        return f"LogSumKernel sums the kernel itself and requires the constraint Free, got {constraint!r}."

    def __call__(self, result: BlockResult) -> Tensor:
        values = result.plan.log_row_mass() - result.plan.f
        if self.pooled:
            pattern = result.block.pattern
            values = log_sum_exp_by_group(pattern.row_items, values, pattern.num_items)[pattern.row_items]
        return _repulsion_of_rows(result, values)


@dataclass(frozen=True, repr=False)
class MeanKernel(ReprMixin, KernelDivergence):
    """Repulsion by the kernel (KCL): its mean over the compared pairs of a row, averaged over rows.

    Raises:
        UsageError: in the call, a single item.

    Source: the uniformity of kernel contrastive learning, Koromilas et al. (2024).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.MeanKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5786
    """

    def __call__(self, result: BlockResult) -> Tensor:
        return _repulsion_of_rows(result, torch.exp(result.plan.log_kernel_row_sums() - log_candidate_counts(result)))


@dataclass(frozen=True, repr=False)
class MeanSquaredCost(ReprMixin, KernelDivergence):
    """Mean squared cost over the compared pairs of a row, averaged over rows: the repulsion of the spectral loss.

    With the cost -cos it makes different items orthogonal.

    Args:
        summed: sum over the compared pairs rather than average.

    Raises:
        UsageError: in the call, a single item.

    Source: the repulsion of the spectral contrastive loss, HaoChen et al. (2021), eq. 6.

    >>> import torch, contraport as cp
    >>> kernel = cp.Gibbs("negative-cosine", 1.0)
    >>> loss = cp.Objective(cp.Cross(), kernel, cp.Free(), cp.Pairs(), cp.MeanSquaredCost())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.3333
    """

    has_temperature_gradient: ClassVar[bool] = False

    summed: bool = False

    def __call__(self, result: BlockResult) -> Tensor:
        plan = result.plan
        # A link of the kernel: the squares are summed within the pass, without an (N, M) matrix of costs.
        log_squares = log_sums(plan.geometry.with_link(SQUARE), "rows")
        log_squares = log_squares if self.summed else log_squares - log_candidate_counts(result)
        return _repulsion_of_rows(result, plan.log_kernel_without_link.unit**2 * torch.exp(log_squares))


@dataclass(frozen=True, repr=False)
class VarianceHinge(ReprMixin, KernelDivergence):
    """Variance hinge of VICReg, <t, [1 - sqrt(-C + epsilon)]_+>: penalizes standard deviations below 1.

    For `WithinView` over `Coordinates` with the cost ``"dot"``: minus the cost of a coordinate is its variance.

    Args:
        epsilon: keeps the slope of the square root finite, positive.

    Raises:
        UsageError: epsilon is not positive.

    Source: Bardes, Ponce and LeCun (2022), VICReg, eq. 1.

    >>> import torch, contraport as cp
    >>> layout = cp.Coordinates(cp.WithinView())
    >>> loss = cp.Objective(layout, cp.Gibbs("dot", 1.0), cp.Free(), cp.Pairs(), cp.VarianceHinge())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4226
    """

    has_temperature_gradient: ClassVar[bool] = False

    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)

    def __call__(self, result: BlockResult) -> Tensor:
        kernel = result.plan.log_kernel_without_link
        return target_weighted_cost_sums(result, lambda t: F.relu(1 - torch.sqrt(kernel.unit * t + self.epsilon)))


def log_candidate_counts(result: BlockResult) -> Tensor:
    """Return the log of the number of compared pairs in each row, (N,); 0 for rows without any."""
    return result.block.pattern.compared_pairs().row_counts(result.plan.f).clamp_min(1).log()


def _repulsion_of_rows(result: BlockResult, values: Tensor) -> Tensor:
    """Return the repulsion of each row, (N,), times its target mass; 0 for rows without compared pairs."""
    require_negatives(result)
    a = result.target.row_mass()
    return a * torch.where((a > 0) & (values != -torch.inf), values, 0)


def log_mean_exp_by_group(groups: Tensor, values: Tensor, weights: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the log-mean-exp of the values in each group, (size,), and the group sizes; empty groups get 0.

    Args:
        groups: group of each value, (k,).
        values: (k,).
        weights: positive, (k,).
        size: number of groups.
    """
    zeros = values.new_zeros(size)
    counts = zeros.index_add(0, groups, torch.ones_like(values))
    mass = zeros.index_add(0, groups, weights.to(values)).masked_fill(counts == 0, 1)
    total = log_sum_exp_by_group(groups, values + weights.to(values).log(), size)
    return total.masked_fill(counts == 0, 0) - mass.log(), counts


def log_sum_exp_by_group(groups: Tensor, values: Tensor, size: int) -> Tensor:
    """Return the log-sum-exp of the values in each group, (size,); minus infinity for empty groups."""
    with torch.no_grad():  # the maximum is subtracted for stability, and cancels in the gradient
        top = values.new_full((size,), -torch.inf).scatter_reduce(0, groups, values, "amax")
        top = top.masked_fill(top == -torch.inf, 0)
    total = values.new_zeros(size).index_add(0, groups, torch.exp(values - top[groups]))
    empty = total == 0
    return (total.masked_fill(empty, 1).log() + top).masked_fill(empty, -torch.inf)
