"""Constraints on rows and columns, reached from the kernel by half steps."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contraport.engine import (
    OTHER_AXIS,
    Axis,
    Geometry,
    HalfStep,
    Relaxation,
    cached,
    log_size,
    run_half_steps,
    solve_fixed_point,
)
from contraport.errors import check, check_integer, check_positive, unknown_name_error
from contraport.objectives.constraints.constraint import (
    DEFAULT_REQUEST,
    Constraint,
    Marginals,
    PlanRequest,
)
from contraport.objectives.plan import Plan, kl

REFERENCES = ("product", "counting")
"""Reference measures of an entropy: the product of the marginals, and 1 everywhere."""


def _check_reference(name: str | None) -> None:
    if name not in REFERENCES:
        raise unknown_name_error("reference", name, REFERENCES)


class SinkhornConstraint(Constraint):
    """An allowed set whose plan is reached from the kernel by half steps.

    A subclass defines the half steps, and how far each may stay from its marginal. If they may, the plan depends on the
    reference measure of its entropy, and the subclass must declare one: their masses differ by orders of magnitude.

    Attributes:
        reference: ``"product"`` of the marginals, or ``"counting"``, 1 everywhere; None where both marginals are met.

    Raises:
        UsageError: at the definition of a subclass with slack that declares no reference.
    """

    reference: str | None = None

    def __init_subclass__(cls, **known: Any) -> None:
        super().__init_subclass__(**known)
        if isinstance(cls.reference, str):
            _check_reference(cls.reference)
        declared = cls.reference is not None or "reference" in inspect.get_annotations(cls)
        check(
            declared or cls.slack is SinkhornConstraint.slack,
            f"reference: must be declared by {cls.__name__}, which has slack, got none; "
            'write reference: str = "product" or "counting" in the class.',
        )

    @abstractmethod
    def half_steps(self) -> tuple[Axis, ...]:
        """Return the axis of each half step, in order; each reads the potential of the one before."""

    def slack(self, axis: Axis, temperature: float | Tensor) -> StepRelaxation:
        """Return how far a half step on an axis may stay from its marginal."""
        return STRICT

    @property
    def until(self) -> float | None:
        """The tolerance at which the half steps end, on rows and columns in turn; None makes all of them."""
        return None

    @property
    def strict(self) -> bool:
        """Whether rows and columns are both to meet their marginals, which must then have the same total."""
        return len(set(self.half_steps())) == 2

    def marginal_price(self, plan: Plan) -> Tensor:
        """Return what a plan pays for missing its marginals, ``()``."""
        return torch.zeros((), dtype=plan.f.dtype, device=plan.f.device)

    def __call__(self, geometry: Geometry, asked: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        """Return the plan of each direction.

        Both directions run together, so that one pass over the pairs serves a half step of each.
        """
        kernel = geometry.log_kernel
        like, temperature = kernel.inputs[0], kernel.temperature
        masses = asked.marginals or _uniform(*kernel.shape, like.dtype, like.device)
        reference, axes = self._reference(masses, asked.log_weights), self.half_steps()
        if self.until is not None:
            slacks = [self.slack(axis, temperature) for axis in axes[:2]]
            slack = self._slack(slacks, like, reference, 1)
            f, g, made = solve_fixed_point(geometry, masses, self.until, len(axes) // 2, slack)
            found = _plan_of(geometry, asked.marginals, masses, reference, axes[:2], [f, g], slacks[1])
            plan = replace(found, iterations=made, unit_mass=False)
            return [plan, plan.T] if asked.reciprocal else [plan]
        given, sides = [] if reference is None else list(reference[::-1]), 2 if asked.reciprocal else 1
        steps = _chain(axes, sides, bool(given))
        slacks, slack = [STRICT], Relaxation(references=reference)
        if type(self).slack is not SinkhornConstraint.slack:
            slacks = [self.slack(axis, temperature) for axis in axes]
            slack = self._slack(slacks, like, reference, sides)
        potentials = run_half_steps(geometry, steps, masses, slack, given[:sides])
        plans = [_plan_of(geometry, asked.marginals, masses, reference, axes, potentials[::sides], slacks[-1])]
        if asked.reciprocal:
            marginals = None if asked.marginals is None else asked.marginals[::-1]
            start = None if reference is None else reference[::-1]
            back = _plan_of(geometry.T, marginals, masses[::-1], start, axes, potentials[1::2], slacks[-1])
            plans.append(back)
        return plans

    def _reference(self, masses: Marginals, log_weights: Tensor | None) -> Marginals | None:
        """Return r and c, from which the potentials start and are measured; None is zero.

        The reference measure of the plan is exp(r_i + c_j).
        """
        if self.reference is not None or type(self).slack is not SinkhornConstraint.slack:
            _check_reference(self.reference)
        product = self.reference == "product"
        if log_weights is None:
            return masses if product else None
        rows, columns = masses if product else (torch.zeros_like(v) for v in masses)
        return rows, columns + log_weights

    def _slack(
        self, slacks: Sequence[StepRelaxation], like: Tensor, reference: Marginals | None, directions: int
    ) -> Relaxation:
        """Return the slack of each half step of all directions."""
        if all(one is STRICT for one in slacks):
            return Relaxation(references=reference)
        return Relaxation(
            _per_step([one.damping for one in slacks], 1.0, like, directions),
            _per_step([one.bound for one in slacks], math.inf, like, directions),
            reference,
        )


def _plan_of(
    geometry: Geometry,
    marginals: Marginals | None,
    masses: Marginals,
    reference: Marginals | None,
    axes: tuple[Axis, ...],
    potentials: list[Tensor],
    last: StepRelaxation,
) -> Plan:
    """Return the plan at the end of a chain of half steps; the mass of its last axis needs no further pass.

    Args:
        geometry: the pairs.
        marginals: of the call; None is uniform.
        masses: the same as vectors, which other plans may share.
        reference: where the potentials start; None is zero.
        axes: of the half steps.
        potentials: that they have found.
        last: the slack of the last one.
    """
    wanted = dict(zip(OTHER_AXIS, masses, strict=True))
    start: dict[Axis, Tensor] = {} if reference is None else dict(zip(OTHER_AXIS, reference, strict=True))
    latest, unset = dict(zip(axes, potentials, strict=True)), []
    for axis, mass in wanted.items():
        if axis not in latest and start:
            latest[axis] = start[axis].clone()
        elif axis not in latest:
            latest[axis] = torch.zeros_like(mass)
            unset.append(axis)
    final, known = axes[-1], None
    if last.bound is None and last.damping is None:
        known = wanted[final].clone()
    elif last.bound is None and last.damping is not None:
        # With p - r = damping (log m - r - L), the mass exp(p + L) is m exp((p - r) (1 - 1/damping)).
        step = latest[final] - start[final] if start else latest[final]
        known = wanted[final] + step * (1 - 1 / last.damping)
    return Plan(
        geometry,
        latest["rows"],
        latest["columns"],
        known if final == "rows" else None,
        known if final == "columns" else None,
        tuple(unset),
        last == STRICT and geometry.has_full_support,
        marginals,
        len(axes) // 2 or None,
    )


@cached
def _uniform(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Marginals:
    """Return log 1/N, (N,), and log 1/M, (M,), which several plans share."""
    like = torch.empty(0, dtype=dtype, device=device)
    return like.new_zeros(rows) - log_size(rows, like), like.new_zeros(columns) - log_size(columns, like)


@cached
def _chain(axes: tuple[Axis, ...], directions: int, given: bool) -> tuple[HalfStep, ...]:
    """Return the half steps of all directions, in each place those of all of them, each reading the one before.

    The first read what is given, one potential of each direction, or else zero.
    """
    before = 0 if given else -1
    return tuple(
        HalfStep(axis if c == 0 else OTHER_AXIS[axis], None if k + before < 0 else (k + before) * directions + c)
        for k, axis in enumerate(axes)
        for c in range(directions)
    )


class StepRelaxation(NamedTuple):
    """How far one half step may stay from its marginal; see `Relaxation`, which has one for each step.

    Attributes:
        damping: how far it goes towards it, in (0, 1); None is all the way.
        bound: how far it may go at all; None is as far as it likes.
    """

    damping: float | Tensor | None = None
    bound: float | Tensor | None = None


STRICT = StepRelaxation()
"""A half step that meets its marginal."""


def _per_step(
    values: Sequence[float | Tensor | None], otherwise: float, like: Tensor, directions: int
) -> Tensor | None:
    """Return the value of each half step of all directions, (steps,), or None where no step has one."""
    if all(value is None for value in values):
        return None
    known = [otherwise if value is None else value for value in values]
    each = torch.stack([torch.as_tensor(value, dtype=like.dtype, device=like.device) for value in known])
    return each.repeat_interleave(directions)


@dataclass(frozen=True, repr=False)
class Rows(SinkhornConstraint):
    """Every row has mass 1/N: P = diag(a) softmax of the rows, the plan of InfoNCE and NT-Xent.

    Source: the set U(a) of inverse optimal transport; C1 of generalised contrastive alignment.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows",)


@dataclass(frozen=True, repr=False)
class Columns(SinkhornConstraint):
    """Every column has mass 1/M: the mirror of `Rows`.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Columns(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def half_steps(self) -> tuple[Axis, ...]:
        return ("columns",)


class AlternatingConstraint(SinkhornConstraint):
    """Half steps on rows and columns in turn: what `Balanced` and `Unbalanced`, which document it, have in common."""

    iterations: int
    tolerance: float | None
    marginals: str

    def __post_init__(self) -> None:
        check_integer("iterations", self.iterations)
        if self.marginals not in ("uniform", "weights"):
            raise unknown_name_error("marginals", self.marginals, ("uniform", "weights"))
        if self.tolerance is not None:
            check_positive("tolerance", self.tolerance)

    @property
    def until(self) -> float | None:
        return self.tolerance

    def half_steps(self) -> tuple[Axis, ...]:
        return ("rows", "columns") * self.iterations


@dataclass(frozen=True, repr=False)
class Balanced(AlternatingConstraint):
    """Rows and columns have mass 1/N and 1/M, approached by Sinkhorn iterations (rows, then columns, from zero).

    Args:
        iterations: pairs of half steps, at least 1; with a tolerance, the most that are made.
        tolerance: go on until the masses of the rows are off by less than this in all (the total is 1), and take the
            gradient of the plan at convergence; a warning says so if the iterations do not suffice. None runs all
            iterations and takes the gradient of just these.
        marginals: ``"uniform"``, every item has the same mass, or ``"weights"``, the items' ``weights=`` in the call.

    Raises:
        UsageError: iterations is not a positive integer, the tolerance is not positive, or marginals is neither.

    Source: Cuturi (2013), algorithm 1, in the log domain.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Balanced(iterations=5), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    iterations: int = 5
    tolerance: float | None = None
    marginals: str = "uniform"


@dataclass(frozen=True, repr=False)
class Unbalanced(AlternatingConstraint):
    """Rows and columns may miss their mass 1/N and 1/M at a price, so that pairs that fit nowhere are let go.

    The plan is the argument of min <C, P> + temperature KL(P | R) + relaxation (D(P 1 | a) + D(P^T 1 | b)): with the
    reference measure R = a x b its mass is at most 1 where no cost is negative, and what is missing is what was let go.

    Args:
        relaxation: the price for rows and columns, or a pair of prices, positive, in units of the cost; infinity is
            `Balanced`.
        iterations: pairs of half steps, at least 1.
        reference: ``"product"``, R = a x b, or ``"counting"``, R = 1, whose entropy creates mass: at the temperatures
            and prices in use hundreds of times what is wanted.
        price: D, ``"kl"``, or ``"total-variation"``, under which masses are met exactly or given up by a factor of at
            most exp(relaxation / temperature).
        tolerance: as in `Balanced`; here until a further iteration changes the masses of the rows by less in all.
        marginals: ``"uniform"``, every item has the same mass, or ``"weights"``, the items' ``weights=`` in the call.

    Raises:
        UsageError: a relaxation is not positive, iterations is not a positive integer, or a name is unknown.

    Source: Chizat et al. (2018), Scaling algorithms for unbalanced optimal transport, table 1: a half step is damped by
    relaxation / (relaxation + temperature) for KL, and clamped to +- relaxation / temperature for the total variation;
    both are measured from log R. Séjourné et al. (2019), Sinkhorn divergences for unbalanced transport, for R = a x b.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Unbalanced(0.5), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3023, 0.1112],
            [0.1112, 0.3023]])
    """

    relaxation: float | tuple[float, float] = 1.0
    iterations: int = 5
    reference: str = "product"
    price: str = "kl"
    tolerance: float | None = None
    marginals: str = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_reference(self.reference)
        if self.price not in ("kl", "total-variation"):
            raise unknown_name_error("price", self.price, ("kl", "total-variation"))
        for value in self._relaxations().values():
            check_positive("relaxation", value, allow_infinity=True)

    def _relaxations(self) -> dict[Axis, float]:
        rho = self.relaxation
        if not isinstance(rho, tuple | list):
            return {"rows": rho, "columns": rho}
        check(len(rho) == 2, f"relaxation: expected a number or one for rows and one for columns, got {rho!r}.")
        return {"rows": rho[0], "columns": rho[1]}

    @property
    def strict(self) -> bool:
        return all(math.isinf(value) for value in self._relaxations().values())

    def marginal_price(self, plan: Plan) -> Tensor:
        found = {"rows": plan.log_row_mass(), "columns": plan.log_column_mass()}
        wanted = {"rows": plan.log_row_marginal, "columns": plan.log_column_marginal}
        total = super().marginal_price(plan)
        for axis, relaxation in self._relaxations().items():
            if math.isfinite(relaxation):
                off = kl if self.price == "kl" else _total_variation
                total = total + relaxation * off(found[axis], wanted[axis])
        return total

    def slack(self, axis: Axis, temperature: float | Tensor) -> StepRelaxation:
        relaxation = self._relaxations()[axis]
        if self.price == "kl":
            return StepRelaxation(damping=1 / (1 + temperature / relaxation))
        return StepRelaxation(bound=relaxation / temperature)


def _total_variation(log_mass: Tensor, log_wanted: Tensor) -> Tensor:
    return (log_mass.exp() - log_wanted.exp()).abs().sum()
