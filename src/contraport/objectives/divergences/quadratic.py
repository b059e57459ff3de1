"""Divergences under the quadratic regulariser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from contraport.errors import UsageError, check_positive, unknown_name_error
from contraport.objectives.constraints import Constraint, Tsallis, TsallisPlan
from contraport.objectives.divergences.divergence import Divergence
from contraport.objectives.plan import BlockResult, Plan
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class FenchelYoung(ReprMixin, Divergence):
    """The Fenchel-Young loss of a quadratic plan: its own divergence, as KL is that of entropic plans.

    Per unit of shared mass, with logits theta: Omega*(theta) - <theta, t> + Omega(t), Omega = |.|^2 / 2; zero where P =
        t.

    Raises:
        UsageError: in the call, for a plan other than that of `Tsallis` of order 2.

    Source: Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses, section 4.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Tsallis(2), cp.Pairs(), cp.FenchelYoung())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    3.0
    """

    supports_column_weights: ClassVar[bool] = False

    def mismatch(self, constraint: Constraint) -> str | None:
        if not (isinstance(constraint, Tsallis) and constraint.order == 2):
            return f"FenchelYoung belongs to the constraint Tsallis of order 2; for {constraint!r} it is KL or Energy."
        return None

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the loss of each row."""
        target, plan = outcome.target, outcome.plan
        if not isinstance(plan, TsallisPlan):
            raise UsageError(
                f"divergence: FenchelYoung expects a plan of Tsallis of order 2, got a {type(plan).__name__}."
            )
        mass = target.row_mass()
        served = mass if plan.per_row else mass.sum()
        own = target.row_square_mass() / torch.where(served > 0, served, 1) / 2
        return mass * plan.conjugate() - plan.row_inner_logits(target) + own


@dataclass(frozen=True, repr=False)
class ClosedFormQuadratic(ReprMixin, Divergence):
    """-log of a quadratic plan's positives when negative entries are let pass: no pass over the pairs at all.

    rows: -mean_i log((1 + sum_j (C_ij - C_i+)) / n); simplex: -mean_i log((N + sum_st (C_st - C_i+)) / n^2), with sums
    over the compared pairs, n of them in a row and n^2 in all. Where the argument falls below a small floor the
    logarithm goes on as its tangent, so that value and gradient stay finite and still pull the pair together.

    Args:
        over: ``"rows"`` or ``"simplex"``.

    Raises:
        UsageError: over is neither.

    Source: the losses L_G of inverse optimal transport for contrastive learning.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.ClosedFormQuadratic())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    7.9078
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    over: str = "rows"
    floor: float = 1e-3

    def __post_init__(self) -> None:
        if self.over not in ("rows", "simplex"):
            raise unknown_name_error("over", self.over, ("rows", "simplex"))
        check_positive("floor", self.floor)

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the loss of each row."""
        plan, compared = outcome.plan, outcome.block.pattern.compared()
        totals, counts = -plan.geometry.log_kernel.row_inner_products(compared), compared.counts(plan.f)
        mass = 1.0
        if self.over == "simplex":
            totals, counts, mass = totals.sum(), counts.sum(), float(len(plan.f))
        level = ((mass + totals) / counts.clamp_min(1)).expand_as(plan.f)
        # As T is minus the cost in units of the temperature, the argument at (i, j) is the level of its row plus T.
        arguments = Plan(plan.geometry, level, torch.zeros_like(plan.g))
        return -outcome.target.row_expectation(arguments, self._log)

    def _log(self, argument: Tensor) -> Tensor:
        safe = argument.clamp_min(self.floor)
        return safe.log() + (argument - safe) / self.floor
