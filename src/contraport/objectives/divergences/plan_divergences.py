"""Divergences between plans, entropic ones above all."""

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
    """The generalised Kullback-Leibler divergence, sum t log(t / P) - sum t + sum P: nonnegative, zero where P = t.

    Where the layout keeps the positives out of the denominators, they count with the mass that they would have had.

    Args:
        conditional: compare the shares of each row, P_ij / sum_j P_ij with those of the target, so that it does not
            matter how much mass a row carries.

    Raises:
        UsageError: in the call, the layout does so and there is nothing else to compare with (one item).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.KL())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.5514
    """

    conditional: bool = False

    def __post_init__(self) -> None:
        check(isinstance(self.conditional, bool), f"conditional: expected True or False, got {self.conditional!r}.")

    def mismatch(self, constraint: Constraint) -> str | None:
        if constraint.has_exact_zeros:
            return f"KL is infinite on the exact zeros of {constraint!r}; FenchelYoung is the divergence of order 2."
        return None

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the rows of KL(target | plan); each carries its share of what the masses differ by."""
        if not outcome.block.pattern.compares_positives:
            require_negatives(outcome)
        target, plan = outcome.target, outcome.plan
        rows = target.row_entropy() + plan.row_inner_log(target)
        if self.conditional:
            wanted, found = target.row_mass(), plan.log_row_mass()
            found = torch.where(found == -torch.inf, 0, found)  # nothing is compared there: nothing is added
            return wanted * found - torch.xlogy(wanted, wanted) - rows
        return -rows if plan.unit_mass else target.row_mass() * (plan.mass() - 1) - rows


@dataclass(frozen=True, repr=False)
class ReverseKL(ReprMixin, Divergence):
    """KL(P | t): it punishes mass where the target has none, so that the target must have some on every compared pair.

    Raises:
        UsageError: in the call, for a target that is zero where the plan is not.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Domains(0.1, 0.1), cp.ReverseKL())
    >>> round(loss(torch.eye(3), torch.eye(3), domains=torch.tensor([0, 0, 1])).item(), 4)
    0.183
    """

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the rows of KL(plan | target)."""
        plan, target = outcome.plan, outcome.target

        def divergence(rows: slice) -> Tensor:
            log_plan, wanted = plan.restrict(rows).log_dense(), target.restrict(rows).dense()
            present = log_plan != -torch.inf
            check_values("target", wanted, (wanted > 0) | ~present, "mass on each compared pair, for ReverseKL")
            log_plan = torch.where(present, log_plan, 0)
            log_ratio = log_plan - torch.where(present, wanted, 1).log()
            return torch.where(present, log_plan.exp() * (log_ratio - 1), 0).sum(1) + wanted.sum(1)

        return torch.cat(map_row_blocks(divergence, plan.shape))


@dataclass(frozen=True, repr=False)
class SquaredL2(ReprMixin, Divergence):
    """Half the squared distance of the plans, N/2 sum (P - t)^2, so that a row counts by its shares, not by its
    mass.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.SquaredL2())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.1348
    """

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the rows of N/2 |plan - target|^2."""
        target, plan = outcome.target, outcome.plan
        crossed = target.row_expectation(plan, torch.exp)
        return plan.shape[0] * (plan.row_square_mass() / 2 - crossed + target.row_square_mass() / 2)


@dataclass(frozen=True, repr=False)
class Rince(ReprMixin, Divergence):
    """The robust divergence of RINCE, mean_i 1/q [(lam sum_j N P_ij)^q - (N P_i+)^q]. It can be negative.

    Where rows are to carry other masses a than 1/N, P_ij / a_i takes the place of N P_ij.

    q -> 0 gives the logarithm, InfoNCE; q = 1 is symmetric between positives and negatives, and tolerates noise.

    Args:
        q: in (0, 1].
        lam: weight of the negatives, in (0, 1].

    Raises:
        UsageError: q or lam is outside its interval.

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
            check(is_number(value) and 0 < value <= 1, f"{name}: expected a number in (0, 1], got {value!r}.")

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the divergence of each row."""
        target, plan = outcome.target, outcome.plan
        shares = plan.relative_to_marginal()
        attracted = target.row_expectation(shares, lambda log_share: torch.exp(self.q * log_share))
        repelled = torch.exp(self.q * (math.log(self.lam) + plan.log_row_mass() - plan.log_row_marginal))
        return (target.row_mass() * repelled - attracted) / self.q
