"""The constraints that know no rows and no columns: nothing at all, or the total mass alone."""

from __future__ import annotations

from dataclasses import dataclass

from contraport.engine import Geometry, constant, log_sums
from contraport.objectives.constraints.constraint import Constraint, uniform_marginals
from contraport.objectives.plan import Plan


@dataclass(frozen=True, repr=False)
class Free(Constraint):
    """Every nonnegative plan is allowed: P = diag(a) K, no normalisation at all."""

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Plan]:
        """Return the plan of each direction."""
        directions = [geometry, geometry.T] if reciprocal else [geometry]
        return [
            Plan(seen, log_a, constant(len(log_b), 0.0, log_b), zero=("columns",))
            for seen in directions
            for log_a, log_b in [uniform_marginals(seen)]
        ]


@dataclass(frozen=True, repr=False)
class Simplex(Constraint):
    """The total mass is 1: P = K / sum K, the plan of t-SNE.

    Source: the set U(1) of inverse optimal transport.
    """

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Plan]:
        """Return the plan of each direction."""
        _, log_b = uniform_marginals(geometry)
        zeros = constant(len(log_b), 0.0, log_b)
        by_row = log_sums(geometry, "rows", zeros)
        log_mass = by_row.logsumexp(0)
        plan = Plan(geometry, (-log_mass).expand_as(by_row), zeros, by_row - log_mass, zero=("columns",), balanced=True)
        return [plan, plan.T] if reciprocal else [plan]
