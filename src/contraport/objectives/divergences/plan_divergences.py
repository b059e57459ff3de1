"""Divergences of the plan from the target plan: KL, reverse KL, squared L2 and RINCE."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import map_row_blocks
from contraport.errors import check, is_number
from contraport.objectives.constraints import Constraint
from contraport.objectives.divergences.divergence import Divergence, require_negatives
from contraport.objectives.inputs import check_values
from contraport.objectives.plan import BlockResult
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class KL(ReprMixin, Divergence):
    """Kullback-Leibler divergence KL(t | P) = sum t log(t / P) - sum t + sum P; with `Rows`, the cross-entropy.

    Positives that the layout excludes from the compared pairs count with the mass they would have had.

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

    def __post_init__(self) -> None:
        check(isinstance(self.conditional, bool), f"conditional: must be True or False, got {self.conditional!r}.")

    def constraint_conflict(self, constraint: Constraint) -> str | None:
        if constraint.has_exact_zeros:
            return f"KL is infinite on the exact zeros of {constraint!r}; use FenchelYoung for order 2."
        return None

    def __call__(self, result: BlockResult) -> Tensor:
        """Return the divergence of each row, (N,); the difference of the total masses is divided among the rows."""
        if not result.block.pattern.compares_positives:
            require_negatives(result)
        target, plan = result.target, result.plan
        rows = target.row_entropy() + plan.row_inner_log(target)
        if self.conditional:
            mass, log_mass = target.row_mass(), plan.log_row_mass()
            log_mass = torch.where(log_mass == -torch.inf, 0, log_mass)  # rows without compared pairs add nothing
            return mass * log_mass - torch.xlogy(mass, mass) - rows
        # With total mass 1 by construction no pass is needed for it.
        return -rows if plan.has_unit_mass else target.row_mass() * (plan.mass() - 1) - rows


@dataclass(frozen=True, repr=False)
class ReverseKL(ReprMixin, Divergence):
    """Reverse Kullback-Leibler divergence KL(P | t); the target must have mass on every compared pair.

    Raises:
        UsageError: in the call, for a target that is zero where the plan is not.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Domains(0.1, 0.1), cp.ReverseKL())
    >>> round(loss(torch.eye(3), torch.eye(3), domains=torch.tensor([0, 0, 1])).item(), 4)
    0.183
    """

    def __call__(self, result: BlockResult) -> Tensor:
        plan, target = result.plan, result.target

        def divergence(rows: slice) -> Tensor:
            log_plan, mass = plan.take_rows(rows).log_dense(), target.take_rows(rows).dense()
            present = log_plan != -torch.inf
            check_values("target", mass, (mass > 0) | ~present, "positive on each compared pair for ReverseKL")
            log_plan = torch.where(present, log_plan, 0)
            log_ratio = log_plan - torch.where(present, mass, 1).log()
            return torch.where(present, log_plan.exp() * (log_ratio - 1), 0).sum(1) + mass.sum(1)

        return torch.cat(map_row_blocks(divergence, plan.shape))


@dataclass(frozen=True, repr=False)
class SquaredL2(ReprMixin, Divergence):
    """Squared Euclidean distance of the plans, N/2 sum (P - t)^2: rows count by their shares, not by their mass.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.SquaredL2())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.1348
    """

    def __call__(self, result: BlockResult) -> Tensor:
        target, plan = result.target, result.plan
        inner = target.row_expectation(plan, torch.exp)
        return plan.shape[0] * (plan.row_square_mass() / 2 - inner + target.row_square_mass() / 2)


@dataclass(frozen=True, repr=False)
class Rince(ReprMixin, Divergence):
    """Robust InfoNCE divergence (RINCE), mean_i 1/q [(lam sum_j N P_ij)^q - (N P_i+)^q]. It can be negative.

    If the marginal a of the rows is not 1/N, P_ij / a_i replaces N P_ij. The limit q -> 0 is InfoNCE; q = 1 is
    symmetric in positives and negatives, and robust to wrong positives.

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

    def __call__(self, result: BlockResult) -> Tensor:
        target, plan = result.target, result.plan
        shares = plan.relative_to_marginal()
        attraction = target.row_expectation(shares, lambda log_share: torch.exp(self.q * log_share))
        repulsion = torch.exp(self.q * (math.log(self.lam) + plan.log_row_mass() - plan.log_row_marginal))
        return (target.row_mass() * repulsion - attraction) / self.q
