"""Divergences for quadratically regularized plans (Tsallis regularizer of order 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from contraport.errors import UsageError, check_positive, unknown_name_error
from contraport.objectives.constraints import Constraint, Tsallis, TsallisPlan
from contraport.objectives.divergences.divergence import Divergence, KernelDivergence, replace_zeros_by_one
from contraport.objectives.plan import BlockResult, Plan
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class FenchelYoung(ReprMixin, Divergence):
    """Fenchel-Young loss of quadratically regularized plans (sparsemax loss): the counterpart of KL.

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

    def constraint_conflict(self, constraint: Constraint) -> str | None:
        if not (isinstance(constraint, Tsallis) and constraint.order == 2):
            use = "use KL or ContrastiveEnergy"
            return f"FenchelYoung requires the constraint Tsallis of order 2; for {constraint!r} {use}."
        return None

    def __call__(self, result: BlockResult) -> Tensor:
        target, plan = result.target, result.plan
        if not isinstance(plan, TsallisPlan):
            got = type(plan).__name__
            message = f"divergence: FenchelYoung requires a plan of Tsallis of order 2, got a {got}."
            raise UsageError(message, kind="constraint")
        mass = target.row_mass()
        shared = mass if plan.has_row_potentials else mass.sum()
        own = target.row_square_mass() / replace_zeros_by_one(shared) / 2
        return mass * plan.conjugate() - plan.target_weighted_logits(target) + own


@dataclass(frozen=True, repr=False)
class ClosedFormQuadratic(ReprMixin, KernelDivergence):
    """Closed-form loss of the quadratic regularizer (IOT-CL), whose plan may have negative entries.

    It takes no pass over all pairs.

    rows: -mean_i log((1 + sum_j (C_ij - C_i+)) / n); simplex: -mean_i log((N + sum_st (C_st - C_i+)) / n^2), with sums
    over the compared pairs, n of them in a row and n^2 in all. Below a small floor the logarithm continues as its
    tangent, so that value and gradient stay finite and still attract the pair.

    Args:
        over: ``"rows"`` or ``"simplex"``.
        floor: argument below which the logarithm continues as its tangent, positive.

    Raises:
        UsageError: over is unknown, or the floor is not positive.

    Source: the losses L_G of inverse optimal transport for contrastive learning.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.ClosedFormQuadratic())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    7.9078
    """

    over: str = "rows"
    floor: float = 1e-3

    def __post_init__(self) -> None:
        if self.over not in ("rows", "simplex"):
            raise unknown_name_error("over", self.over, ("rows", "simplex"))
        check_positive("floor", self.floor)

    def __call__(self, result: BlockResult) -> Tensor:
        plan, compared = result.plan, result.block.pattern.compared_pairs()
        totals, counts = -plan.geometry.log_kernel.row_inner_products(compared), compared.row_counts(plan.f)
        mass = 1.0
        if self.over == "simplex":
            totals, counts, mass = totals.sum(), counts.sum(), float(len(plan.f))
        level = ((mass + totals) / counts.clamp_min(1)).expand_as(plan.f)
        # T is minus the cost in units of the temperature: the argument at (i, j) is the level of its row plus T_ij.
        arguments = Plan(plan.geometry, level, torch.zeros_like(plan.g))
        return -result.target.row_expectation(arguments, self._log)

    def _log(self, argument: Tensor) -> Tensor:
        # Tangent continuation: below the floor log x becomes its tangent, which attracts where log is undefined.
        safe = argument.clamp_min(self.floor)
        return safe.log() + (argument - safe) / self.floor
