"""Attraction and repulsion as separate terms of a loss (DHEL, KCL, VICReg).

If both are over the same pairs, one is an objective's divergence and the other its penalty; else they are two
objectives of a `SumLoss`. All but `ContrastiveEnergy` depend on the kernel alone, so that their constraint is `Free`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import Geometry, LogOfFunction, row_log_sums
from contraport.errors import UsageError, check, check_integer, check_positive, check_type
from contraport.objectives.constraints import Constraint, Free, Rows, Simplex
from contraport.objectives.divergences.divergence import (
    Divergence,
    KernelDivergence,
    ValuesPerRow,
    check_has_negatives,
    log_candidate_counts_per_row,
    log_mean_kernel_of_block,
    replace_zeros_by_one,
    scale_rows_by_target_mass,
)
from contraport.objectives.equal_label_pairs import log_sum_exp_by_group, weighted_log_mean_exp_by_group
from contraport.objectives.plan import Plan, PlanWithTarget
from contraport.objectives.targets.target import SparseTargetPlan
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@dataclass(frozen=True, repr=False)
class TargetCost(KernelDivergence):
    """Transport cost <t, C> of the target plan t, an attraction without repulsion.

    Args:
        power: of the cost, <t, C^power>, a positive integer.

    Raises:
        UsageError: the power is not a positive integer.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.TargetCost())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    1.0
    """

    repels: ClassVar[bool] = False
    has_temperature_gradient: ClassVar[bool] = False

    power: int = 1

    def __post_init__(self) -> None:
        check_integer("power", self.power)

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        kernel = result.plan.log_kernel_without_link
        if self.power == 1:
            return -kernel.cost_unit * result.target.row_products_with_log_kernel(kernel)
        minus_cost = Plan(Geometry(kernel), None, None)
        return result.target.target_weighted_row_sums(minus_cost, lambda t: (-kernel.cost_unit * t) ** self.power)


@dataclass(frozen=True, repr=False)
class KernelAttraction(KernelDivergence):
    """Attraction by the mean kernel over positive pairs, -<target plan, K> (KCL).

    The attraction vanishes for distant pairs.

    Source: the alignment of kernel contrastive learning, Koromilas et al. (2024).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.KernelAttraction())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -1.0
    """

    repels: ClassVar[bool] = False

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        # The plan with zero potentials is the kernel itself.
        return -result.target.target_weighted_row_sums(Plan(result.plan.kernel_geometry, None, None), torch.exp)


@accept_deprecated_keywords(sigma="item_weight_temperature", weight_temperature="item_weight_temperature")
@keep_deprecated_attributes(sigma="item_weight_temperature", weight_temperature="item_weight_temperature")
@dataclass(frozen=True, repr=False)
class LogKernelAttraction(KernelDivergence):
    """Attraction by the log of each item's kernel sum over positives (DHEL).

    For two views it is minus the log-kernel of the positive. With more, the most similar pairs of an item attract most.

    Args:
        item_weight_temperature: sigma in the weight 2 - n softmax_i(s_i / sigma) of each of the n items, detached, with
            the similarity s_i of its views (minus the cost): the least similar pairs count most. None: equal weights.

    Raises:
        UsageError: item_weight_temperature is not positive; in the call, the target plan is not given by its entries,
            as that of `Pairs`.

    Source: Koromilas et al. (2025), MV-DHEL; with weights, Yeh et al. (2022), Decoupled contrastive learning, eq. 7.

    >>> import torch, contraport as cp
    >>> kernel, alignment = cp.Gibbs("negative-cosine", 0.5), cp.LogKernelAttraction()
    >>> loss = cp.Objective(cp.Cross(), kernel, cp.Free(), cp.Pairs(), alignment)
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -2.0
    """

    repels: ClassVar[bool] = False

    item_weight_temperature: float | None = None

    def __post_init__(self) -> None:
        if self.item_weight_temperature is not None:
            check_positive("item_weight_temperature", self.item_weight_temperature)

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        """Return each row's attraction, weighted by target mass, (N,)."""
        target, log_kernel = result.target, result.plan.kernel_geometry.log_kernel
        if not isinstance(target, SparseTargetPlan):
            got = type(target).__name__
            raise UsageError(f"target: must consist of pairs for LogKernelAttraction, got a {got}.", kind="conflict")
        items, size = result.block.pattern.row_items, result.block.pattern.num_items
        entries = target.gather_log_kernel_entries(log_kernel)
        pair_items = items[target.rows]
        pairs = entries.new_zeros(size).index_add(0, pair_items, torch.ones_like(entries))
        total = weighted_log_mean_exp_by_group(pair_items, entries, target.values, pairs)
        # If an item has a row for each view, each of its pairs occurs in both directions.
        rows = torch.zeros_like(pairs).index_add(0, items, pairs.new_ones(len(items)))
        total = total + torch.where(rows > 1, pairs / 2, pairs).clamp_min(1).log()
        if self.item_weight_temperature is not None:
            with torch.no_grad():
                has_pairs = pairs > 0
                similarity = (total * (log_kernel.cost_unit / self.item_weight_temperature)).masked_fill(
                    ~has_pairs, -torch.inf
                )
                weight = torch.where(has_pairs, 2 - has_pairs.sum() * similarity.softmax(0), 0)
            total = total * weight.detach()  # forward-mode differentiation ignores no_grad
        return -target.row_mass() * total[items]


@accept_deprecated_keywords(absolute="absolute_scores")
@keep_deprecated_attributes(absolute="absolute_scores")
@dataclass(frozen=True, repr=False)
class PairRanking(KernelDivergence):
    """Ranking loss of graded pairs (CoSENT): penalizes pairs ranked against their grades.

    The sum is over all i and j such that pair i has a higher grade than pair j. s_i is the score of pair i of the
    target plan, its log-kernel, and its grade is the weight of its row, ``weights=`` of the call: only the order of the
    grades counts, and equal grades are not compared. It takes O(n log n) time.

    Args:
        absolute_scores: rank by the absolute value of the score, as AnglE does.

    Raises:
        UsageError: absolute_scores is not a Boolean; in the call, weights are missing, or the target plan is not given
            by its entries, as that of `Pairs`.

    Source: Huang et al. (2024), CoSENT: consistent sentence embedding via similarity ranking.

    >>> import torch, contraport as cp
    >>> kernel, layout = cp.Gibbs("negative-cosine", 1.0), cp.Cross(symmetric=False)
    >>> loss = cp.Objective(layout, kernel, cp.Free(), cp.Pairs(), cp.PairRanking())
    >>> round(loss(torch.eye(2), torch.eye(2), weights=[1.0, 0.5]).item(), 4)  # log(1 + exp(1 - 1))
    0.6931
    """

    repels: ClassVar[bool] = False

    absolute_scores: bool = False

    def __call__(self, result: PlanWithTarget) -> Tensor:
        """Return the loss of all pairs, a scalar."""
        target, grades = result.target, result.row_weights
        if not isinstance(target, SparseTargetPlan):
            got = type(target).__name__
            raise UsageError(f"target: must consist of pairs for PairRanking, got a {got}.", kind="conflict")
        if grades is None:
            raise UsageError("weights: required, not given. Pass a grade per pair: its similarity.", kind="missing")
        scores = target.gather_log_kernel_entries(result.plan.log_kernel_without_link)
        scores = scores.abs() if self.absolute_scores else scores
        ascending, order = (-grades[target.rows]).sort(stable=True)  # the highest grade first
        scores = scores[order]
        num_higher = torch.searchsorted(ascending, ascending)
        none = scores.new_full((1,), -torch.inf)
        of_higher = torch.cat([none, torch.logcumsumexp(-scores, 0)])[num_higher]
        return torch.cat([scores.new_zeros(1), scores + of_higher]).logsumexp(0)


@accept_deprecated_keywords(pooled="pooled_over_views")
@keep_deprecated_attributes(pooled="pooled_over_views")
@dataclass(frozen=True, repr=False)
class LogSumKernel(Divergence):
    """Repulsion of InfoNCE, the mean of log sum_j K_ij over rows i.

    Args:
        pooled_over_views: sum over the rows of an item, one per view, before the logarithm: one denominator per item.

    Raises:
        UsageError: the constraint has column potentials; in the call, a single item.

    Source: pooled, Li et al. (2023), Towards general text embeddings (GTE).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.LogSumKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5514
    """

    depends_on_constraint: ClassVar[bool] = False

    pooled_over_views: bool = False

    def constraint_conflict_message(self, constraint: Constraint) -> str | None:
        # Column potentials are only defined up to a factor, which row potentials compensate for; here nothing would.
        if isinstance(constraint, Free | Rows | Simplex):
            return None
        return f"LogSumKernel sums the kernel itself and requires the constraint Free, got {constraint!r}."

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        check_has_negatives(result)
        values = result.plan.log_row_mass() - result.plan.f
        if self.pooled_over_views:
            pattern = result.block.pattern
            values = log_sum_exp_by_group(pattern.row_items, values, pattern.num_items)[pattern.row_items]
        return scale_rows_by_target_mass(result, values)


@dataclass(frozen=True, repr=False)
class MeanKernel(KernelDivergence):
    """Repulsion by the mean kernel over a row's compared pairs (KCL).

    Raises:
        UsageError: in the call, a single item.

    Source: the uniformity of kernel contrastive learning, Koromilas et al. (2024).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.MeanKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5786
    """

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        check_has_negatives(result)
        log_means = result.plan.kernel_log_row_sums() - log_candidate_counts_per_row(result)
        return scale_rows_by_target_mass(result, torch.exp(log_means))


@dataclass(frozen=True, repr=False)
class LogMeanKernel(KernelDivergence):
    """Uniformity loss, the log of the mean kernel over the compared pairs.

    Raises:
        UsageError: in the call, a single item.

    Source: Wang and Isola (2020), eq. 2, with the kernel exp(-2 |x - y|^2).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.LogMeanKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -0.5472
    """

    def __call__(self, result: PlanWithTarget) -> Tensor:
        check_has_negatives(result)
        return log_mean_kernel_of_block(result)


@accept_deprecated_keywords(summed="sum_over_pairs")
@keep_deprecated_attributes(summed="sum_over_pairs")
@dataclass(frozen=True, repr=False)
class MeanSquaredCost(KernelDivergence):
    """Repulsive term of the spectral loss, the mean square of costs such as -cosine.

    With the cost -cos it is the mean squared similarity and makes different items orthogonal.

    Args:
        sum_over_pairs: sum over the compared pairs rather than average.

    Raises:
        UsageError: sum_over_pairs is not a Boolean; in the call, a single item.

    Source: the repulsion of the spectral contrastive loss, HaoChen et al. (2021), eq. 6.

    >>> import torch, contraport as cp
    >>> kernel = cp.Gibbs("negative-cosine", 1.0)
    >>> loss = cp.Objective(cp.Cross(), kernel, cp.Free(), cp.Pairs(), cp.MeanSquaredCost())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.3333
    """

    has_temperature_gradient: ClassVar[bool] = False

    sum_over_pairs: bool = False

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        check_has_negatives(result)
        plan = result.plan
        # A link of the kernel, log T^2: the squares are summed within the pass, without an (N, M) matrix of costs.
        log_squares = row_log_sums(plan.kernel_geometry.with_link(LogOfFunction(torch.square)))
        log_squares = log_squares if self.sum_over_pairs else log_squares - log_candidate_counts_per_row(result)
        return scale_rows_by_target_mass(result, plan.log_kernel_without_link.cost_unit**2 * torch.exp(log_squares))


@dataclass(frozen=True, repr=False)
class VarianceHinge(KernelDivergence):
    """Variance hinge of VICReg, the mean of max(0, 1 - sqrt(variance + epsilon)).

    The mean is over coordinates. It penalizes standard deviations below 1. For `WithinView` over `CoordinatePairs` with
    the cost ``"dot"``: minus the cost of a coordinate is its variance.

    Args:
        epsilon: keeps the slope of the square root finite, positive.

    Raises:
        UsageError: epsilon is not positive; in the call, a kernel whose cost is a distance.

    Source: Bardes, Ponce and LeCun (2022), VICReg, eq. 1.

    >>> import torch, contraport as cp
    >>> layout = cp.CoordinatePairs(cp.WithinView())
    >>> loss = cp.Objective(layout, cp.Gibbs("dot", 1.0), cp.Free(), cp.Pairs(), cp.VarianceHinge())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4226
    """

    has_temperature_gradient: ClassVar[bool] = False

    epsilon: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        kernel = result.plan.log_kernel_without_link
        message = "kernel: must have a cost that is no distance, such as 'dot', for VarianceHinge."
        check(not kernel.cost_is_distance, message, "conflict")
        return result.target.target_weighted_row_sums(
            Plan(Geometry(kernel), None, None), lambda t: F.relu(1 - torch.sqrt(kernel.cost_unit * t + self.epsilon))
        )


@accept_deprecated_keywords(detach="detach_plan", paired="attracts_by_row_mass", phi="phi_of_sum")
@keep_deprecated_attributes(detach="detach_plan", paired="attracts_by_row_mass", phi="phi_of_sum")
@dataclass(frozen=True, repr=False)
class ContrastiveEnergy(Divergence):
    """Contrastive energy (alpha-CL), target cost minus plan cost, <t, C> - <P, C>.

    It is the encoder's side of a min-max game, in which the plan chooses the weights of the negatives.

    Args:
        detach_plan: hold the plan fixed. With `Rows` the gradient is then temperature times that of KL.
        attracts_by_row_mass: attract each row in proportion to its mass in the plan rather than in the target:
            sum_ij P_ij (C_i+ - C_ij), with the cost C_i+ of the positive of row i.
        phi_of_sum: differentiable function phi of the sum xi = sum_j exp((C_i+ - C_ij) / temperature), for the
            constraint `Rows`: the weights of row i add up to xi phi'(xi) / temperature. With a detached plan the
            gradient is that of phi(xi).

    Raises:
        UsageError: an argument has the wrong type; in the call, a single item in a layout that excludes the positives.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 3-5, theorem 1.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.ContrastiveEnergy())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -0.4239
    """

    detach_plan: bool = True
    attracts_by_row_mass: bool = False
    phi_of_sum: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.phi_of_sum is not None:
            check_type("phi_of_sum", self.phi_of_sum, Callable, "torch.log1p")

    def constraint_conflict_message(self, constraint: Constraint) -> str | None:
        if self.phi_of_sum is not None and not isinstance(constraint, Rows):
            return f"phi_of_sum of ContrastiveEnergy requires the constraint Rows, got {constraint!r}."
        return super().constraint_conflict_message(constraint)

    @property
    def has_temperature_gradient(self) -> bool:
        """True if gradients reach the temperature, which a detached plan prevents."""
        return not self.detach_plan

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        """Return the energy of each row, (N,), 0 for rows without compared pairs."""
        pattern, plan = result.block.pattern, result.plan
        if not pattern.includes_positives:
            check_has_negatives(result)
        attraction = TargetCost()(result)
        pull = attraction
        if self.attracts_by_row_mass:
            share = torch.exp(plan.log_row_mass() - plan.log_prescribed_row_marginal)
            pull = (share.detach() if self.detach_plan else share) * attraction
        energy = pull - plan.row_cost(detach_plan=self.detach_plan)
        if self.phi_of_sum is not None:
            distance = attraction / replace_zeros_by_one(result.target.row_mass())
            temperature = plan.log_kernel_without_link.temperature
            xi = torch.exp(distance / temperature + plan.log_prescribed_row_marginal - plan.f)
            # A vector-Jacobian product, so that phi may be any function and the gradient of its slope exists.
            slope: Tensor = torch.func.vjp(self.phi_of_sum, xi)[1](torch.ones_like(xi))[0]
            mass = xi * slope / temperature
            energy = (mass.detach() if self.detach_plan else mass) * energy
        if pattern.includes_positives or pattern.has_no_empty_row_or_column:
            return energy
        return energy.masked_fill(pattern.compared_pairs().row_counts(plan.f.dtype) == 0, 0)
