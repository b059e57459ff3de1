"""Divergences of the plan from its target, and penalties on the plan.

Total variation, Hellinger and Jensen-Shannon are finite where one plan has mass and the other has none. Where the
target has no mass each is a constant times the plan's mass: only the row masses of the plan and its entries on the
target's support are needed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from contraport.engine import checkpoint_row_blocks
from contraport.errors import UsageError, check, check_name, is_number
from contraport.objectives.constraints import Constraint, DenseTsallisPlan, Tsallis, TsallisPlan
from contraport.objectives.divergences.divergence import (
    Divergence,
    ValuesPerRow,
    check_has_negatives,
    replace_zeros_by_one,
)
from contraport.objectives.inputs import check_values
from contraport.objectives.plan import Plan, PlanWithTarget, generalized_kl_sum


@dataclass(frozen=True, repr=False)
class KL(Divergence):
    """Kullback-Leibler divergence KL(t | P) of the target t from the plan P.

    It is sum t log(t / P) - sum t + sum P. With row-normalized plans (`Rows`) it is the cross-entropy, up to the
    entropy of the target, a constant.

    Positives that the layout excludes from the compared pairs count with the mass they would have had. If the
    constraint fixes the masses of the rows or of the columns, sum P is 1, also if one of them has no compared pair.

    ``weights=`` of the call weight the rows of the target, not the plan: with w of mean 1 under the target's masses,
    KL = sum w_i t_ij log(t_ij / P_ij) - sum t + sum P, which leaves out the entropy of the weights.

    Args:
        conditional: compare the shares within each row, P_ij / sum_j P_ij, so that the mass of a row does not matter.

    Raises:
        UsageError: in the call, a single item in a layout that excludes the positives.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.KL())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5514
    """

    conditional: bool = False

    def constraint_conflict_message(self, constraint: Constraint) -> str | None:
        if constraint.has_exact_zeros:
            has_order_2 = isinstance(constraint, Tsallis) and constraint.order == 2
            use = "use FenchelYoung" if has_order_2 else "use JensenShannon, SquaredL2 or ContrastiveEnergy"
            return f"KL is infinite on the exact zeros of {constraint!r}; {use}."
        return super().constraint_conflict_message(constraint) if self.conditional else None

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        """Return each row's divergence, (N,).

        The difference in total mass is divided among the rows by target mass.
        """
        if not result.block.pattern.includes_positives:
            check_has_negatives(result)
        target, plan = result.target, result.plan
        # No pass over the pairs: the target has mass on few of them, or sums over it have a closed form.
        rows = target.row_relative_entropy(plan.geometry.log_kernel, plan.row_potential, plan.column_potential)
        if self.conditional:
            mass, log_mass = target.row_mass(), plan.log_row_mass()
            log_mass = torch.where(log_mass == -torch.inf, 0, log_mass)  # rows without compared pairs add nothing
            return rows + mass * log_mass - torch.xlogy(mass, mass)
        # With total mass 1 by construction no pass is needed for it.
        return rows if plan.has_unit_mass else rows + target.row_mass() * (plan.mass() - 1)


@dataclass(frozen=True, repr=False)
class ReverseKL(Divergence):
    """Reverse Kullback-Leibler divergence KL(P | t) of plan P from target t.

    Raises:
        UsageError: in the call, for a target that is zero where the plan is not.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Domains(0.1, 0.1), cp.ReverseKL())
    >>> round(loss(torch.eye(3), torch.eye(3), domains=torch.tensor([0, 0, 1])).item(), 4)
    0.183
    """

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        plan, target = result.plan, result.target

        def divergence(rows: slice) -> Tensor:
            log_plan, mass = plan.take_rows(rows).log_dense(), target.take_rows(rows).dense()
            present = log_plan != -torch.inf
            check_values("target", mass, (mass > 0) | ~present, "positive on each compared pair for ReverseKL")
            log_plan = torch.where(present, log_plan, 0)
            log_ratio = log_plan - torch.where(present, mass, 1).log()
            return torch.where(present, log_plan.exp() * (log_ratio - 1), 0).sum(1) + mass.sum(1)

        return checkpoint_row_blocks(divergence, *plan.shape)


@dataclass(frozen=True, repr=False)
class SquaredL2(Divergence):
    """Squared Euclidean distance between plan and target, N/2 sum (P - t)^2.

    If all rows have mass 1/N, it is half the mean over rows of the squared distance of N P from N t. With other
    marginals, a row counts by the square of its mass.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.SquaredL2())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.1348
    """

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        target, plan = result.target, result.plan
        inner = target.target_weighted_row_sums(plan, torch.exp)
        return plan.shape[0] * (plan.row_squared_norm() / 2 - inner + target.row_squared_norm() / 2)


@dataclass(frozen=True, repr=False)
class Rince(Divergence):
    """Robust InfoNCE (RINCE) for noisy positives, between InfoNCE and a symmetric loss.

    It can be negative. The value is mean_i 1/q [(lam sum_j N P_ij)^q - (N P_i+)^q], with P_i+ the mass on the positives
    of row i. If the marginal a of the rows is not 1/N, P_ij / a_i replaces N P_ij. The limit q -> 0 is InfoNCE; q = 1
    is symmetric in positives and negatives, and robust to wrong positives.

    Args:
        q: in (0, 1].
        lam: weight of the row's mass, in (0, 1].

    Raises:
        UsageError: q or lam is out of range.

    Source: Chuang et al. (2022), Robust contrastive learning against noisy views, eq. 4.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.Rince(q=0.5, lam=0.5))
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -0.1038
    """

    q: float = 0.5
    lam: float = 0.01

    def __post_init__(self) -> None:
        for name in ("q", "lam"):
            value = getattr(self, name)
            check(is_number(value) and 0 < value <= 1, f"{name}: must be a number in (0, 1], got {value!r}.")

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        target, plan = result.target, result.plan
        shares = Plan(plan.geometry, plan.f - plan.log_prescribed_row_marginal, plan.column_potential)  # P_ij / a_i
        attraction = target.target_weighted_row_sums(shares, lambda log_share: torch.exp(self.q * log_share))
        repulsion = torch.exp(self.q * (math.log(self.lam) + plan.log_row_mass() - plan.log_prescribed_row_marginal))
        return (target.row_mass() * repulsion - attraction) / self.q


@dataclass(frozen=True, repr=False)
class FenchelYoung(Divergence):
    """Fenchel-Young loss of quadratically regularized plans (sparsemax loss).

    Per unit of shared mass, with logits theta: Omega*(theta) - <theta, t> + Omega(t), Omega = |.|^2 / 2; zero if P = t.

    Raises:
        UsageError: the constraint is not `Tsallis` of order 2.

    Source: Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses, section 4.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Tsallis(2), cp.Pairs(), cp.FenchelYoung())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    3.0
    """

    supports_column_weights: ClassVar[bool] = False

    def constraint_conflict_message(self, constraint: Constraint) -> str | None:
        if not (isinstance(constraint, Tsallis) and constraint.order == 2):
            use = "use JensenShannon, SquaredL2 or ContrastiveEnergy" if constraint.has_exact_zeros else "use KL"
            return f"FenchelYoung requires the constraint Tsallis of order 2; for {constraint!r} {use}."
        return None

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        target, plan = result.target, result.plan
        if not isinstance(plan, TsallisPlan | DenseTsallisPlan):
            got = type(plan).__name__
            message = f"divergence: FenchelYoung requires a plan of Tsallis of order 2, got a {got}."
            raise UsageError(message, kind="constraint")
        mass = target.row_mass()
        shared = mass if isinstance(plan, TsallisPlan) and plan.has_potential_per_row else mass.sum()
        own = target.row_squared_norm() / replace_zeros_by_one(shared) / 2
        logits = plan.problem.logit_geometry if isinstance(plan, TsallisPlan) else plan.kernel_geometry
        return mass * plan.quadratic_conjugate() - target.row_products_with_log_kernel(logits.log_kernel) + own


class PlanDistance(Divergence, ABC):
    """Base class of sums of elementwise distances between target t and plan P.

    Where t_ij is 0, the distance must be a multiple of P_ij.

    Attributes:
        zero_target_slope: Slope of the distance in P_ij where t_ij is 0; the distance must be linear there.
    """

    zero_target_slope: float

    @abstractmethod
    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        """Return the distance of each plan mass from its target mass, for targets above 0."""

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        target, plan = result.target, result.plan

        # Beyond zero_target_slope * P the distance vanishes off the support of the target: only its entries are read.
        def excess(mass: Tensor, log_plan: Tensor) -> Tensor:
            return self.elementwise_distance(mass, log_plan) - self.zero_target_slope * log_plan.exp()

        return target.row_sums_over_support(plan, excess) + self.zero_target_slope * plan.log_row_mass().exp()


@dataclass(frozen=True, repr=False)
class TotalVariation(PlanDistance):
    """Total variation distance between plan P and target t, half the sum of |t - P|.

    Source: the Wasserstein distance under the 0-1 metric; the distance d_M of generalized contrastive alignment, Chen
    et al. (2024), section 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.TotalVariation())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4239
    """

    zero_target_slope = 0.5

    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        return (target - log_plan.exp()).abs() / 2


@dataclass(frozen=True, repr=False)
class Hellinger(PlanDistance):
    """Squared Hellinger distance between plan P and target t, 1/2 sum (sqrt t - sqrt P)^2.

    Source: Liese and Vajda (2006), On divergences and informations in statistics and information theory, section II.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.Hellinger())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.241
    """

    zero_target_slope = 0.5

    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        return (target.sqrt() - torch.exp(log_plan / 2)).square() / 2


@dataclass(frozen=True, repr=False)
class JensenShannon(PlanDistance):
    """Jensen-Shannon divergence between the target t and the plan P.

    It is the mean of KL(t | m) and KL(P | m) with m = (t + P) / 2, at most log 2 for plans of mass 1.

    Source: Lin (1991), Divergence measures based on the Shannon entropy, eq. 4.1.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.JensenShannon())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.1758
    """

    zero_target_slope = math.log(2) / 2

    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        log_mean = torch.logaddexp(target.log(), log_plan) - math.log(2)
        # Where P is 0 its term is 0: a finite logarithm in place of -inf avoids 0 times infinity.
        own = torch.where(log_plan > -torch.inf, log_plan, log_mean)
        return (target * (target.log() - log_mean) + own.exp() * (own - log_mean)) / 2


@dataclass(frozen=True, repr=False)
class PlanUniformity(Divergence):
    """Penalty of inverse optimal transport for uneven plan mass of the negatives.

    The penalty is KL(Q | P): Q is P with that mass spread evenly. With the cosine cost it takes no pass over the pairs.

    Raises:
        UsageError: the plan of the constraint has exact zeros.

    Source: the uniformity penalty of inverse optimal transport for contrastive learning, eq. 19-20.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.PlanUniformity())
    >>> round(loss(torch.eye(3), torch.eye(3).flip(1)).item(), 4)
    0.0797
    """

    def constraint_conflict_message(self, constraint: Constraint) -> str | None:
        if constraint.has_exact_zeros:
            return f"PlanUniformity is infinite on the exact zeros of {constraint!r}."
        return super().constraint_conflict_message(constraint)

    def __call__(self, result: PlanWithTarget) -> Tensor:
        plan, negatives = result.plan, result.block.pattern.different_item_pairs()
        positive_mass = plan.log_at(*result.block.pattern.positives).exp().sum()
        row_counts, column_counts = negatives.row_counts(plan.f.dtype), negatives.T.row_counts(plan.g.dtype)
        count = row_counts.sum()
        # A difference of nearly equal masses if the positives have almost all: below 0 it is a rounding error.
        mean = (plan.mass() - positive_mass).clamp_min(0) / count.clamp_min(1)
        log_total = plan.geometry.log_kernel.row_sums_of_weighted_log_kernel(negatives).sum()
        log_total = log_total + row_counts @ plan.f + column_counts @ plan.g
        # Without negatives, or without mass on them, the penalty is 0 and has no gradient.
        return mean * (count * torch.where(mean > 0, mean, 1).log() - log_total)


@dataclass(frozen=True, repr=False)
class MarginalPenalty(Divergence):
    """Penalty on deviations of the plan's masses from the prescribed marginals.

    Args:
        divergence: ``"kl"``; ``"squared-l2"``, N/2 times the squared distance; ``"total-variation"``; or
            ``"jensen-shannon"``.
        sides: ``"both"``, ``"rows"`` or ``"columns"``.

    Raises:
        UsageError: an unknown name.

    Source: the terms lambda_1 h_F and lambda_2 h_G of generalized contrastive alignment, Chen et al. (2024), eq. 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.MarginalPenalty())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4428
    """

    divergence: Literal["kl", "squared-l2", "total-variation", "jensen-shannon"] = "kl"
    sides: Literal["both", "rows", "columns"] = "both"

    def __post_init__(self) -> None:
        check_name("divergence", self.divergence, ("kl", "squared-l2", "total-variation", "jensen-shannon"))
        check_name("sides", self.sides, ("both", "rows", "columns"))

    def __call__(self, result: PlanWithTarget) -> Tensor:
        plan, values = result.plan, []
        if self.sides != "columns":
            values.append(self._divergence_from_marginal(plan.log_prescribed_row_marginal.exp(), plan.log_row_mass()))
        if self.sides != "rows":
            values.append(
                self._divergence_from_marginal(plan.log_prescribed_column_marginal.exp(), plan.log_column_mass())
            )
        return torch.stack(values).sum()

    def _divergence_from_marginal(self, prescribed_marginal: Tensor, log_masses: Tensor) -> Tensor:
        """Return the divergence of row or column masses from the prescribed marginal."""
        if self.divergence == "kl":
            return generalized_kl_sum(log_masses, prescribed_marginal.log())
        if self.divergence == "squared-l2":
            return len(prescribed_marginal) / 2 * (log_masses.exp() - prescribed_marginal).square().sum()
        distance = TotalVariation() if self.divergence == "total-variation" else JensenShannon()
        return distance.elementwise_distance(prescribed_marginal, log_masses).sum()


@dataclass(frozen=True, repr=False)
class PlanEntropy(Divergence):
    """Penalty on a high entropy of the plan, H(P) = -sum P (log P - 1).

    It makes the plan sharper. It takes one pass over the pairs, in blocks of rows.

    Source: the term epsilon H(P) of generalized contrastive alignment, Chen et al. (2024), eq. 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.PlanEntropy())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    3.0739
    """

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        plan = result.plan

        def entropy(rows: slice) -> Tensor:
            log_plan = plan.take_rows(rows).log_dense()
            present = log_plan != -torch.inf
            log_plan = torch.where(present, log_plan, 0)
            return -torch.where(present, log_plan.exp() * (log_plan - 1), 0).sum(1)

        return checkpoint_row_blocks(entropy, *plan.shape)
