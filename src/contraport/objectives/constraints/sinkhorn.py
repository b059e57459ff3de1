"""Constraints on row and column marginals, solved by Sinkhorn half-steps."""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from contraport.engine import (
    OTHER_AXIS,
    AxisName,
    Geometry,
    HalfStepSpec,
    Relaxation,
    cached_until_result_written,
    run_half_steps,
    run_sinkhorn_to_convergence,
)
from contraport.errors import check, check_integer, check_name, check_positive
from contraport.objectives.constraints.constraint import (
    Constraint,
    LogMarginals,
    PlanRequest,
    uniform_log_marginals,
)
from contraport.objectives.plan import Plan, generalized_kl_sum
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

REFERENCE_MEASURES = ("product", "counting")
"""Names of the reference measures of the entropy: the product of the marginals, or 1 everywhere (counting)."""


class MarginalRelaxation(NamedTuple):
    """Relaxation of a marginal in Sinkhorn, by damping and bounding its log potential.

    Attributes:
        damping: Factor of the distance of the potential from its reference, in (0, 1]; None is 1.
        max_shift: Largest distance of the potential from its reference; None is unbounded.
    """

    damping: float | Tensor | None = None
    max_shift: float | Tensor | None = None


EXACT_MARGINAL = MarginalRelaxation()
"""No relaxation: the half-step meets its marginal exactly."""


class _SinkhornProblem(NamedTuple):
    """Geometry, marginals and reference measure of a Sinkhorn problem."""

    geometry: Geometry
    explicit_log_marginals: LogMarginals | None
    log_marginals: LogMarginals
    log_reference_factors: LogMarginals | None

    @property
    def T(self) -> _SinkhornProblem:
        """The same problem with rows and columns exchanged."""
        pairs = self.explicit_log_marginals, self.log_reference_factors
        explicit, factors = (None if pair is None else pair[::-1] for pair in pairs)
        return _SinkhornProblem(self.geometry.T, explicit, self.log_marginals[::-1], factors)


@keep_deprecated_attributes(half_steps="half_step_axes")
class SinkhornConstraint(Constraint, ABC):
    """Base class of constraints whose plan is computed by Sinkhorn half-steps.

    A subclass defines the half-steps, and optionally their relaxation. With relaxation the plan depends on the
    reference measure of its entropy, and a subclass that declares none is refused with `UsageError`: the masses
    differ by orders of magnitude.

    Attributes:
        reference: Reference measure of the entropy: ``"product"`` of the marginals, or ``"counting"``, 1 everywhere;
            None without relaxation.
        tolerance: Error of the masses of the first axis at which the iterations stop; None runs all of them.
    """

    reference: str | None = None
    tolerance: float | None = None
    _is_relaxed: ClassVar[bool] = False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if isinstance(cls.reference, str):
            check_name("reference", cls.reference, REFERENCE_MEASURES)
        cls._is_relaxed = cls.marginal_relaxation is not SinkhornConstraint.marginal_relaxation
        declared = cls.reference is not None or "reference" in inspect.get_annotations(cls)
        check(
            declared or not cls._is_relaxed,
            f"reference: must be declared by {cls.__name__}, as its half-steps are relaxed; "
            'write reference: str = "product" or "counting" in the class.',
            "missing",
        )

    @abstractmethod
    def half_step_axes(self) -> tuple[AxisName, ...]:
        """Return the axis of each half-step in order, ``"rows"`` or ``"columns"``.

        Each half-step reads the potential of the one before.
        """

    def marginal_relaxation(self, axis: AxisName, temperature: float | Tensor) -> MarginalRelaxation:
        """Return the relaxation of the row or column marginal, none by default."""
        return EXACT_MARGINAL

    @property
    def fixes_both_marginals(self) -> bool:
        return len(set(self.half_step_axes())) == 2

    def marginal_penalty(self, plan: Plan) -> Tensor:
        """Return the penalty on deviations from the prescribed marginals, a scalar tensor."""
        return torch.zeros((), dtype=plan.f.dtype, device=plan.f.device)

    def __call__(self, geometry: Geometry, request: PlanRequest = PlanRequest()) -> list[Plan]:
        """Return the plan and, if requested, that of the transposed problem.

        Both directions run together, so that one pass over the pairs serves a half-step of each.
        """
        kernel = geometry.log_kernel
        like, temperature, axes = kernel.inputs[0], kernel.temperature, self.half_step_axes()
        log_marginals = request.marginals or uniform_log_marginals(*kernel.shape, like.dtype, like.device)
        reference = self._log_reference_factors(log_marginals, request.log_column_weights)
        problem = _SinkhornProblem(geometry, request.marginals, log_marginals, reference)
        if self.tolerance is not None:
            plan = self._converged_plan(problem, self.tolerance)
            if not request.bidirectional:
                return [plan]
            # In the second direction the columns are the rows, and relaxed as rows.
            is_transposed = not self._is_relaxed or len({self.marginal_relaxation(axis, 1.0) for axis in axes[:2]}) == 1
            return [plan, plan.T if is_transposed else self._converged_plan(problem.T, self.tolerance)]
        num_directions = 2 if request.bidirectional else 1
        # The first half-step of a direction reads the potential of its other axis.
        initial = [] if reference is None else list(reference[::-1] if axes[0] == "rows" else reference)
        steps = _list_half_step_axes_and_inputs(axes, num_directions, bool(initial))
        relaxations, relaxation = [EXACT_MARGINAL], Relaxation(reference_potentials=reference)
        if self._is_relaxed:
            relaxations = [self.marginal_relaxation(axis, temperature) for axis in axes]
            relaxation = _stack_half_step_relaxations(relaxations, like, reference, num_directions)
        # The potentials are logarithms: scalings of the kernel overflow single precision at small temperatures.
        potentials = run_half_steps(geometry, steps, log_marginals, relaxation, initial[:num_directions])
        plans = [_build_plan(problem, axes, potentials[::num_directions], relaxations[-1])]
        if request.bidirectional:
            plans.append(_build_plan(problem.T, axes, potentials[1::2], relaxations[-1]))
        return plans

    def _converged_plan(self, problem: _SinkhornProblem, tolerance: float) -> Plan:
        """Return the plan at convergence, which is differentiated implicitly."""
        axes, kernel = self.half_step_axes(), problem.geometry.log_kernel
        check(
            len(set(axes[:2])) == 2 and axes == axes[:2] * (len(axes) // 2),
            f"tolerance: half_step_axes of {type(self).__name__} must alternate rows and columns, in equal numbers.",
            "axes",
        )
        # The solver begins with the rows of what it is given.
        rows_first = problem if axes[0] == "rows" else problem.T
        relaxations = [self.marginal_relaxation(axis, kernel.temperature) for axis in axes[:2]]
        relaxation = _stack_half_step_relaxations(relaxations, kernel.inputs[0], rows_first.log_reference_factors, 1)
        first, second, iterations = run_sinkhorn_to_convergence(
            rows_first.geometry, rows_first.log_marginals, tolerance, len(axes) // 2, relaxation
        )
        plan = _build_plan(problem, axes[:2], [first, second], relaxations[1])
        return replace(plan, iterations=iterations, has_unit_mass=False)

    def _log_reference_factors(
        self, log_marginals: LogMarginals, log_column_weights: Tensor | None
    ) -> LogMarginals | None:
        """Return the log row and column factors of the reference measure, None if uniform.

        There is one for each row, (N,), and column, (M,). Potentials start from them, and relaxation refers to them.
        """
        if self.reference is not None or self._is_relaxed:
            check_name("reference", self.reference, REFERENCE_MEASURES)
        # With the product reference, potentials start at the marginals: the mass is at most 1 if no cost is negative.
        # With the counting reference they start at zero, and the entropy creates mass.
        product = self.reference == "product"
        if log_column_weights is None:
            return log_marginals if product else None
        rows, columns = log_marginals if product else (torch.zeros_like(v) for v in log_marginals)
        return rows, columns + log_column_weights


def _stack_half_step_relaxations(
    relaxation_by_half_step: Sequence[MarginalRelaxation],
    like: Tensor,
    log_reference_factors: LogMarginals | None,
    num_directions: int,
) -> Relaxation:
    """Stack the half-steps' damping factors and bounds on potentials into vectors."""

    def stack(values: list[float | Tensor | None], default: float) -> Tensor | None:
        if all(value is None for value in values):
            return None
        filled = [default if value is None else value for value in values]
        stacked = torch.stack([torch.as_tensor(value, dtype=like.dtype, device=like.device) for value in filled])
        return stacked.repeat_interleave(num_directions)

    # None, not a vector of neutral values: the engine then takes the cheaper half-steps without relaxation.
    dampings = stack([relaxation.damping for relaxation in relaxation_by_half_step], 1.0)
    max_shifts = stack([relaxation.max_shift for relaxation in relaxation_by_half_step], math.inf)
    return Relaxation(dampings, max_shifts, log_reference_factors)


def _build_plan(
    problem: _SinkhornProblem,
    half_step_axes: tuple[AxisName, ...],
    potentials: list[Tensor],
    last_relaxation: MarginalRelaxation,
) -> Plan:
    """Build the transport plan from the potentials of the half-steps.

    The mass along the last axis follows from the last half-step, without another pass over the pairs.
    """
    geometry, explicit_log_marginals, log_marginals, reference = problem
    targets = dict(zip(OTHER_AXIS, log_marginals, strict=True))
    initial: dict[AxisName, Tensor] = {} if reference is None else dict(zip(OTHER_AXIS, reference, strict=True))
    latest = dict(zip(half_step_axes, potentials, strict=True))
    for axis in initial:
        if axis not in latest:
            latest[axis] = initial[axis].clone()
    final, log_mass = half_step_axes[-1], None
    if last_relaxation.max_shift is None and last_relaxation.damping is not None:
        # With p - r = damping (log m - r - L), the mass exp(p + L) is m exp((p - r) (1 - 1/damping)).
        step = latest[final] - initial[final] if initial else latest[final]
        log_mass = targets[final] + step * (1 - 1 / last_relaxation.damping)
    return Plan(
        geometry,
        latest.get("rows"),
        latest.get("columns"),
        log_mass if final == "rows" else None,
        log_mass if final == "columns" else None,
        final if last_relaxation == EXACT_MARGINAL else None,
        last_relaxation == EXACT_MARGINAL and geometry.has_finite_log_sums,
        explicit_log_marginals,
        len(half_step_axes) // 2 or None,
    )


@cached_until_result_written
def _list_half_step_axes_and_inputs(
    half_step_axes: tuple[AxisName, ...], num_directions: int, has_initial_potentials: bool
) -> tuple[HalfStepSpec, ...]:
    """Return the axis and the input potential of each half-step, in order.

    With two directions, each half-step runs on both axes. A direction starts from its initial potential, or zero.
    """
    return tuple(
        HalfStepSpec(axis if c == 0 else OTHER_AXIS[axis], None if k < 0 else k * num_directions + c)
        for k, axis in enumerate(half_step_axes, 0 if has_initial_potentials else -1)
        for c in range(num_directions)
    )


@dataclass(frozen=True, repr=False)
class Rows(SinkhornConstraint):
    """Constraint that each row has mass 1/N, satisfied by a row-wise softmax (InfoNCE).

    Source: the set U(a) of inverse optimal transport; C1 of generalized contrastive alignment.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def half_step_axes(self) -> tuple[AxisName, ...]:
        return ("rows",)


@dataclass(frozen=True, repr=False)
class Columns(SinkhornConstraint):
    """Constraint that each column has mass 1/M, satisfied by a column-wise softmax.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Columns(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def half_step_axes(self) -> tuple[AxisName, ...]:
        return ("columns",)


class AlternatingConstraint(SinkhornConstraint, ABC):
    """Base class of constraints that alternate half-steps on rows and columns."""

    iterations: int

    def __post_init__(self) -> None:
        # The half-steps are a list, whose memory grows with their number.
        check_integer("iterations", self.iterations, most=1_000_000)
        check_name("marginals", self.marginals, ("uniform", "weights"))
        if self.tolerance is not None:
            check_positive("tolerance", self.tolerance)

    def half_step_axes(self) -> tuple[AxisName, ...]:
        return ("rows", "columns") * self.iterations


@dataclass(frozen=True, repr=False)
class Balanced(AlternatingConstraint):
    """Balanced transport with row masses 1/N and column masses 1/M (Sinkhorn).

    An iteration is a half-step on rows, then one on columns; potentials start at zero.

    Args:
        iterations: number of pairs of half-steps, at least 1; with a tolerance, the maximum number.
        tolerance: iterate until the L1 error of the row masses is below this (the total mass is 1), and use the
            gradient of the plan at convergence; a warning is issued if the iterations do not suffice. None runs all
            iterations and uses the gradient of exactly these.
        marginals: ``"uniform"``, or ``"weights"``, the items' ``weights=`` of the call.

    Raises:
        UsageError: iterations is not a positive integer, the tolerance is not positive, or marginals is unknown; in the
            call, with a tolerance, a cost is NaN.

    Source: Cuturi (2013), algorithm 1, in the log domain.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Balanced(iterations=5), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    iterations: int = 5
    tolerance: float | None = None
    marginals: Literal["uniform", "weights"] = "uniform"


@accept_deprecated_keywords(price="marginal_divergence")
@keep_deprecated_attributes(price="marginal_divergence")
@dataclass(frozen=True, repr=False)
class Unbalanced(AlternatingConstraint):
    """Unbalanced transport: deviations from the marginals are penalized, not forbidden.

    The plan minimizes <C, P> + temperature KL(P | R) + relaxation (D(P 1 | a) + D(P^T 1 | b)). With the reference
    measure R = a x b its mass is at most 1 if no cost is negative; the missing mass was given up.

    Args:
        relaxation: price of missing a marginal, for rows and columns or a pair of prices, positive, in units of the
            cost; infinity is `Balanced`.
        iterations: number of pairs of half-steps, at least 1.
        reference: ``"product"``, R = a x b, or ``"counting"``, R = 1, whose entropy creates mass: at common
            temperatures and prices, hundreds of times the target mass.
        marginal_divergence: D, ``"kl"``, or ``"total-variation"``, under which each mass is either met exactly or
            reduced, by a factor of at most exp(relaxation / temperature).
        tolerance: as in `Balanced`; here, until a further iteration changes the row masses by less in L1.
        marginals: ``"uniform"``, or ``"weights"``, the items' ``weights=`` of the call.

    Raises:
        UsageError: a relaxation is not positive, iterations is not a positive integer, or a name is unknown.

    Source: Chizat et al. (2018), Scaling algorithms for unbalanced optimal transport, table 1: a half-step is damped by
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
    marginal_divergence: Literal["kl", "total-variation"] = "kl"
    tolerance: float | None = None
    marginals: Literal["uniform", "weights"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("reference", self.reference, REFERENCE_MEASURES)
        check_name("marginal_divergence", self.marginal_divergence, ("kl", "total-variation"))
        for value in self._deviation_price_by_axis().values():
            check_positive("relaxation", value, allow_infinity=True)

    def _deviation_price_by_axis(self) -> dict[AxisName, float]:
        """Return the penalty weights of deviations from the row and column marginals."""
        rho = self.relaxation
        if not isinstance(rho, tuple | list):
            return {"rows": rho, "columns": rho}
        check(len(rho) == 2, f"relaxation: must be a number or a pair, for rows and columns, got {rho!r}.")
        return {"rows": rho[0], "columns": rho[1]}

    @property
    def fixes_both_marginals(self) -> bool:
        return all(math.isinf(value) for value in self._deviation_price_by_axis().values())

    def marginal_penalty(self, plan: Plan) -> Tensor:
        log_masses = {"rows": plan.log_row_mass(), "columns": plan.log_column_mass()}
        prescribed = {"rows": plan.log_prescribed_row_marginal, "columns": plan.log_prescribed_column_marginal}
        divergence = (
            generalized_kl_sum if self.marginal_divergence == "kl" else lambda m, a: (m.exp() - a.exp()).abs().sum()
        )
        total = super().marginal_penalty(plan)
        for axis, price in self._deviation_price_by_axis().items():
            if math.isfinite(price):
                total = total + price * divergence(log_masses[axis], prescribed[axis])
        return total

    def marginal_relaxation(self, axis: AxisName, temperature: float | Tensor) -> MarginalRelaxation:
        price = self._deviation_price_by_axis()[axis]
        if self.marginal_divergence == "kl":
            # Not price / (price + temperature): an infinite price gives damping 1 rather than NaN.
            return MarginalRelaxation(damping=1 / (1 + temperature / price))
        return MarginalRelaxation(max_shift=price / temperature)
