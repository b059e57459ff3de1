"""The constraints that know no rows and no columns: nothing at all, or the total mass alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from contraport.engine import Axis, Geometry, log_sums
from contraport.objectives.constraints.constraint import ASKED, Asked, Constraint, directions
from contraport.objectives.plan import Plan


@dataclass(frozen=True, repr=False)
class Free(Constraint):
    """Every nonnegative plan is allowed: P = diag(a) K, no normalisation at all.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.5000, 0.1839],
            [0.1839, 0.5000]])
    """

    def __call__(self, geometry: Geometry, asked: Asked = ASKED) -> list[Plan]:
        """Return the plan of each direction."""
        plans = []
        for pairs, (log_a, log_b) in directions(geometry, asked):
            g, zero = _start(len(log_b), log_b, asked.log_weights)
            plans.append(Plan(pairs, log_a, g, zero=zero, log_marginals=(log_a, log_b)))
        return plans


@dataclass(frozen=True, repr=False)
class Simplex(Constraint):
    """The total mass is 1: P = K / sum K, the plan of t-SNE.

    Source: the set U(1) of inverse optimal transport.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Simplex(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def __call__(self, geometry: Geometry, asked: Asked = ASKED) -> list[Plan]:
        """Return the plan of each direction."""
        g, zero = _start(geometry.shape[1], geometry.log_kernel.inputs[0], asked.log_weights)
        by_row = log_sums(geometry, "rows", g)
        log_mass = by_row.logsumexp(0)
        plan = Plan(geometry, (-log_mass).expand_as(by_row), g, by_row - log_mass, zero=zero, unit_mass=True)
        return [plan, plan.T] if asked.reciprocal else [plan]


def _start(columns: int, like: Tensor, log_weights: Tensor | None) -> tuple[Tensor, tuple[Axis, ...]]:
    """Return the potential of the columns under their reference measure, and the axes whose potential is zero."""
    if log_weights is not None:
        return log_weights, ()
    return like.new_zeros(columns), ("columns",)
