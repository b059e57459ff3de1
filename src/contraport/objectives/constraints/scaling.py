"""Constraints on rows and columns, reached from the kernel by half steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import OTHER, Axis, Geometry, Step, constant, converge, scale
from contraport.errors import check, check_positive
from contraport.objectives.constraints.constraint import Constraint, uniform_marginals
from contraport.objectives.plan import Plan


class Scaling(Constraint):
    """An allowed set whose plan is reached from the kernel by half steps.

    A subclass says which half steps, and how much each is damped.
    """

    @abstractmethod
    def half_steps(self) -> tuple[Axis, ...]:
        """Return the axis of each half step, in order; each reads the potential of the one before."""

    def damping(self, axis: Axis, temperature: float | Tensor) -> float | Tensor | None:
        """Return how far a half step on an axis goes towards its marginal, in (0, 1); None is all the way."""
        return None

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Plan]:
        """Return the plan of each direction.

        Both directions run together, so that one pass over the pairs serves a half step of each.
        """
        axes = self.half_steps()
        like, temperature = geometry.log_kernel.inputs[0], geometry.log_kernel.temperature
        directions = [geometry, geometry.T] if reciprocal else [geometry]
        steps = [
            Step(axis if c == 0 else OTHER[axis], (k - 1) * len(directions) + c if k else None)
            for k, axis in enumerate(axes)
            for c in range(len(directions))
        ]
        dampings = [self.damping(axis, temperature) for axis in axes]
        potentials = scale(geometry, steps, uniform_marginals(geometry), _per_step(dampings, like, len(directions)))
        return [_plan(seen, axes, potentials[c :: len(directions)], dampings[-1]) for c, seen in enumerate(directions)]


def _per_step(dampings: Sequence[float | Tensor | None], like: Tensor, directions: int) -> Tensor | None:
    """Return the damping of each half step of all directions, (steps,), or None where there is none at all."""
    if all(damping is None for damping in dampings):
        return None
    known = [1.0 if damping is None else damping for damping in dampings]
    damping = torch.stack([torch.as_tensor(value, dtype=like.dtype, device=like.device) for value in known])
    return damping.repeat_interleave(directions)


def _plan(
    geometry: Geometry, axes: tuple[Axis, ...], potentials: list[Tensor], last_damping: float | Tensor | None
) -> Plan:
    """Return the plan at the end of a chain of half steps; the mass of its last axis needs no further pass."""
    marginals = dict(zip(OTHER, uniform_marginals(geometry), strict=True))
    latest = {axis: constant(len(marginal), 0.0, marginal) for axis, marginal in marginals.items()}
    latest |= dict(zip(axes, potentials, strict=True))
    log_mass = marginals[axes[-1]]
    if last_damping is not None:
        # With p = damping (log m - L), the mass exp(p + L) is m exp(p (1 - 1/damping)).
        log_mass = log_mass + latest[axes[-1]] * (1 - 1 / last_damping)
    known = {axes[-1]: log_mass}
    masses = known.get("rows"), known.get("columns")
    zero = tuple(axis for axis in OTHER if axis not in axes)
    balanced = last_damping is None and geometry.full
    return Plan(geometry, latest["rows"], latest["columns"], *masses, zero, balanced)


@dataclass(frozen=True, repr=False)
class Rows(Scaling):
    """Every row has mass 1/N: P = diag(a) softmax of the rows, the plan of InfoNCE and NT-Xent.

    Source: the set U(a) of inverse optimal transport; C1 of generalised contrastive alignment.
    """

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows",)


@dataclass(frozen=True, repr=False)
class Columns(Scaling):
    """Every column has mass 1/M: the mirror of `Rows`."""

    def half_steps(self) -> tuple[Axis, ...]:
        return ("columns",)


@dataclass(frozen=True, repr=False)
class Balanced(Scaling):
    """Rows and columns have mass 1/N and 1/M, approached by Sinkhorn iterations (rows, then columns, from zero).

    Args:
        iterations: pairs of half steps, at least 1; with a tolerance, the most that are made.
        tolerance: go on until the masses of the rows are off by less than this in all (the total is 1), and take the
            gradient of the plan at convergence; a warning says so if the iterations do not suffice. None runs all
            iterations and takes the gradient of just these.

    Raises:
        UsageError: iterations is not a positive integer, or the tolerance is not positive.

    Source: Cuturi (2013), algorithm 1, in the log domain.
    """

    iterations: int = 5
    tolerance: float | None = None

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        if self.tolerance is not None:
            check_positive("tolerance", self.tolerance)

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows", "columns") * self.iterations

    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Plan]:
        if self.tolerance is None:
            return super().__call__(geometry, reciprocal=reciprocal)
        log_a, log_b = uniform_marginals(geometry)
        f, g = converge(geometry, (log_a, log_b), self.tolerance, self.iterations)
        plan = Plan(geometry, f, g, known_log_column_mass=log_b)
        return [plan, plan.T] if reciprocal else [plan]


@dataclass(frozen=True, repr=False)
class Unbalanced(Scaling):
    """Rows and columns may miss their mass 1/N and 1/M at a price, so that pairs that fit nowhere are let go.

    The price is relaxation * KL(marginal | uniform), in units of the cost; relaxation = infinity is `Balanced`.

    Args:
        relaxation: the price for rows and columns, or a pair of prices, positive.
        iterations: pairs of half steps, at least 1.

    Raises:
        UsageError: a relaxation is not positive, or iterations is not a positive integer.

    Source: Chizat et al. (2018), the KL case: each half step is damped by relaxation / (relaxation + temperature).
    """

    relaxation: float | tuple[float, float] = 1.0
    iterations: int = 5

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        for value in self._relaxations().values():
            check_positive("relaxation", value, allow_infinity=True)

    def _relaxations(self) -> dict[Axis, float]:
        rho = self.relaxation
        if not isinstance(rho, tuple | list):
            return {"rows": rho, "columns": rho}
        check(len(rho) == 2, f"relaxation: expected a number or one for rows and one for columns, got {rho!r}.")
        return {"rows": rho[0], "columns": rho[1]}

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows", "columns") * self.iterations

    def damping(self, axis: Axis, temperature: float | Tensor) -> float | Tensor | None:
        return 1 / (1 + temperature / self._relaxations()[axis])


def _check_iterations(iterations: int) -> None:
    good = isinstance(iterations, int) and not isinstance(iterations, bool) and iterations >= 1
    check(good, f"iterations: expected an integer of at least 1, got {iterations!r}.")
