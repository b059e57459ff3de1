"""Tsallis-regularized transport plans, whose entries are powers of shifted logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from contraport.engine import (
    Geometry,
    HostLoop,
    PolynomialTailLink,
    ScaledLog1p,
    is_in_torch_func,
    row_log_sums,
    run_host_loop,
)
from contraport.errors import check, check_name, fits_float32_or_int64, format_value
from contraport.objectives.constraints.constraint import (
    Constraint,
    PlanRequest,
    Simplex,
    log_marginals_or_uniform,
)
from contraport.objectives.constraints.dense_tsallis import solve_dense_tsallis
from contraport.objectives.constraints.sinkhorn import Balanced, Rows
from contraport.objectives.plan import Plan
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

_MAX_NEWTON_STEPS = 200
"""Largest number of Newton steps for the potentials of a plan; more raise `UsageError`."""

RowPotentialsAndEmptyMask: TypeAlias = list[Tensor]
"""Row potentials, (N,), and a mask of rows without compared pairs, (N,)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class TsallisPlan(Plan):
    """Plan of a Tsallis regularizer, with powers of shifted logits as its entries.

    P_ij = share [(order - 1) (theta_ij - t_i)]_+^(1 / (order - 1)); ``geometry`` is that of the power.

    Attributes:
        problem: Problem that the potentials solve, with the logits theta.
        potential: Potential of each row, (N,), from which the threshold t follows; differentiable.
    """

    problem: TsallisProblem
    potential: Tensor

    @property
    def has_potential_per_row(self) -> bool:
        """True if each row has its own potential, False if all share one."""
        return self.problem.has_potential_per_row

    def quadratic_conjugate(self) -> Tensor:
        """Return the quadratic regularizer's convex conjugate at the logits, (N,) or a scalar.

        It is a scalar if all rows share one potential. The potential is not detached: its first derivative is 0, but
        its second is not.
        """
        row_values = self.problem.log_row_sums_of_base_powers(self.potential, 2).exp() / 2
        threshold = self.potential - self.problem.potential_minus_threshold
        return row_values + threshold if self.has_potential_per_row else row_values.sum() + threshold[0]


@dataclass(frozen=True, eq=False)
class TsallisProblem(HostLoop):
    """Newton's method for the potentials of a Tsallis plan.

    The potentials give each row, or the whole plan, mass 1. A pair with the logit theta has the mass [(order - 1)
    (theta - t)]_+^p with the threshold t and p = 1/(order - 1), the Tsallis q-exponential. It is computed as b^p [1 +
    (theta - v) / (p b)]_+^p, with the `factored_out_base` b. The potential v = t + p b is stored instead of t, since no
    precision is lost in v or in the sum with 1: near order 1, b is near 1 and the function near exp(theta - v); for
    entries near the uniform one, b is near their base. The loop is Newton's iteration, run eagerly until the potentials
    no longer change.

    Attributes:
        logit_geometry: Geometry of the logits theta of the compared pairs, (N, M).
        order: Order of the Tsallis entropy, at most 2 and not 1.
        has_potential_per_row: Whether each row has mass 1, with its own potential; otherwise all rows share one,
            and all pairs have mass 1.
    """

    logit_geometry: Geometry
    order: float
    has_potential_per_row: bool

    @property
    def num_pairs_per_potential(self) -> int:
        """Number of pairs that share one potential."""
        n, m = self.logit_geometry.shape
        return m if self.has_potential_per_row else n * m

    @property
    def plan_exponent(self) -> float:
        """Exponent p = 1 / (order - 1) in the formula of the plan."""
        return 1 / (self.order - 1)

    @property
    def factored_out_base(self) -> float:
        """Constant b that is factored out of the powers to avoid rounding errors.

        It is the base of a uniform entry above order 1, and max(0.5, order) below: `PolynomialTailLink` ends at 1.
        """
        return self.num_pairs_per_potential ** (1 - self.order) if self.order > 1 else max(0.5, self.order)

    @property
    def potential_minus_threshold(self) -> float:
        """Constant to subtract from potentials to get the thresholds of nonzero plan mass."""
        return self.plan_exponent * self.factored_out_base

    def build_base_power_geometry(self, potential: Tensor, base_exponent: float) -> Geometry:
        """Build a geometry whose kernel is a power of the base, up to a factor.

        The base is [(order - 1) (logit - threshold)]_+, divided by `factored_out_base`.
        """
        link = ScaledLog1p(base_exponent) if self.order > 1 else PolynomialTailLink(-base_exponent)
        scale = 1 / abs(self.potential_minus_threshold)
        return self.logit_geometry.with_link(link, factor=scale, row_shift=-potential * scale)

    def log_row_sums_of_base_powers(self, potential: Tensor, base_exponent: float) -> Tensor:
        """Return the log of each row's sum of [(order - 1) (logit - threshold)]_+^base_exponent."""
        log_factor = base_exponent * math.log(self.factored_out_base)
        return row_log_sums(self.build_base_power_geometry(potential, base_exponent)) + log_factor

    def newton_step_and_log_mass(self, potential: Tensor) -> tuple[Tensor, Tensor]:
        """Return each potential's Newton step toward mass 1, and the log of its mass.

        The mass is h(t) = sum [(order - 1) (theta - t)]_+^p. The step is that of h^(order - 1), which is nearly linear:
        above order 1 a norm, convex and decreasing, and below a mean of powers, concave and increasing. From a lower
        bound neither overshoots.
        """
        slope, p = self.order - 1, self.plan_exponent
        log_total = self._log_total_if_potential_shared(self.log_row_sums_of_base_powers(potential, p))
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.order != 2):
            log_slopes = self._log_total_if_potential_shared(self.log_row_sums_of_base_powers(potential, p - 1))
        empty = log_slopes == -torch.inf
        log_total = log_total.masked_fill(empty, 0)
        step = -torch.expm1(-slope * log_total) / slope * torch.exp(log_total - log_slopes.masked_fill(empty, 0))
        return step, log_total

    def run(self) -> RowPotentialsAndEmptyMask:
        """Run Newton's method until the potentials no longer change."""
        potential = self._potential_lower_bounds()
        empty = potential == -torch.inf
        potential = potential.masked_fill(empty, 0)
        rounding = 64 * torch.finfo(potential.dtype).eps
        scale = min(1, abs(self.potential_minus_threshold))
        biases = sum(v.abs().amax() for v in self.logit_geometry.log_kernel.biases_outside_link())
        for _ in range(_MAX_NEWTON_STEPS):
            step, _ = self.newton_step_and_log_mass(potential)
            potential = potential + step.clamp_min(0)  # negative steps are rounding errors
            # NaN stays NaN and ends the loop. Within torch.func no value can be read: all steps are taken.
            if is_in_torch_func() or (step > rounding * (potential.abs() + biases + scale)).any():
                continue
            break
        else:
            message = f"constraint: the potentials of Tsallis did not converge in {_MAX_NEWTON_STEPS} steps."
            check(is_in_torch_func(), message, "not_converged")
        return [potential, empty]

    def empty_outputs_for_tracing(self) -> RowPotentialsAndEmptyMask:
        like, (n, _) = self.logit_geometry.log_kernel.inputs[0], self.logit_geometry.shape
        return [like.new_empty(n), like.new_empty(n, dtype=torch.bool)]

    def _potential_lower_bounds(self) -> Tensor:
        """Return lower bounds of the potentials, (N,), from which Newton's method starts.

        Rows without compared pairs have minus infinity. Below order 1 the weight of a pair is above exp(theta - t - p),
        so that a log-sum-exp of the logits gives a bound. Above order 1 the largest logit gives one; a sharp
        log-sum-exp exceeds it by at most half of its distance to the threshold.
        """
        lift = self.potential_minus_threshold - self.plan_exponent
        if self.order < 1:
            return self._log_total_if_potential_shared(row_log_sums(self.logit_geometry)) + lift
        breadth = math.log(self.num_pairs_per_potential)
        sharpness = max(1.0, 2 * (self.order - 1) * breadth)
        sharp = self._log_total_if_potential_shared(row_log_sums(self.logit_geometry.with_link(None, factor=sharpness)))
        return sharp / sharpness + (lift - breadth / sharpness)

    def _log_total_if_potential_shared(self, log_row_sums: Tensor) -> Tensor:
        """Replace log row sums by the log of the total if all rows share one potential."""
        return log_row_sums if self.has_potential_per_row else log_row_sums.logsumexp(0).expand_as(log_row_sums)


@accept_deprecated_keywords(over="mass_constraint", conditional="regularizes_row_shares")
@keep_deprecated_attributes(over="mass_constraint", conditional="regularizes_row_shares")
@dataclass(frozen=True, repr=False)
class Tsallis(Constraint):
    """Tsallis-regularized transport, whose plan at order 2 is sparse (sparsemax).

    Entries of the plan are powers of the cost rather than exponentials. The plan minimizes <C, P> + temperature
    Omega(P), Omega(P) = sum P^order / (order (order - 1)). Order 2 is the quadratic regularizer, sparsemax in place of
    softmax; order 1 is the entropy; below 1 the tails are heavy: order 1 - gamma gives weights (cost + a constant)^(-1
    / gamma). Above 1 the plan has exact zeros, on which KL is infinite; the divergence for order 2 is `FenchelYoung`.

    Args:
        order: at most 2.
        mass_constraint: ``"rows"``, every row has mass 1/N; ``"simplex"``, the total mass is 1; or ``"balanced"``, rows
            and columns have their marginals, for orders above 0 and on the whole matrix.
        regularizes_row_shares: with ``"rows"``, regularize the shares within a row, not its masses: for order 2,
            P_i N = sparsemax(-C_i / temperature) rather than sparsemax(-C_i N / temperature).

    Raises:
        UsageError: the order is above 2, mass_constraint is unknown, or regularizes_row_shares is set without
            rows; in the call, the order is so far below 0 that thresholds overflow.

    Source: the regularizer G of inverse optimal transport for contrastive learning; Martins and Astudillo (2016); the
    family, Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses, section 4.3.

    >>> import torch
    >>> from contraport.engine import Geometry, Gibbs
    >>> x, y = torch.tensor([[0.0]]), torch.tensor([[0.0], [0.3], [1.0]])
    >>> (plan,) = Tsallis(order=2)(Geometry(Gibbs(torch.cdist, temperature=1.0)(x, y)))
    >>> plan.dense()
    tensor([[0.6500, 0.3500, 0.0000]])
    """

    order: float = 2.0
    mass_constraint: str = "rows"
    regularizes_row_shares: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        good = fits_float32_or_int64(self.order) and self.order <= 2
        check(good, f"order: must be a finite number of at most 2, got {format_value(self.order)}.")
        check_name("mass_constraint", self.mass_constraint, ("rows", "simplex", "balanced"))
        message = f"order: must be above 0 with mass_constraint='balanced', got {self.order!r}."
        check(self.mass_constraint != "balanced" or self.order > 0, message)
        check(
            self.mass_constraint == "rows" or not self.regularizes_row_shares,
            "regularizes_row_shares: requires mass_constraint='rows'.",
            "conflict",
        )

    @property
    def has_exact_zeros(self) -> bool:
        return self.order > 1

    @property
    def fixes_both_marginals(self) -> bool:
        return self.mass_constraint == "balanced"

    def __call__(self, geometry: Geometry, request: PlanRequest = PlanRequest()) -> list[Plan]:
        if self.order == 1:
            return self.build_entropic_limit()(geometry, request)
        check(request.log_column_weights is None, f"column_weights: not supported by {self!r}.", "conflict")
        if self.mass_constraint == "balanced":
            log_a, log_b = log_marginals_or_uniform(geometry, request)
            plan = solve_dense_tsallis(geometry, self.order, self.mass_constraint, log_a, log_b)
            return [plan, plan.T] if request.bidirectional else [plan]
        directions = [geometry, geometry.T] if request.bidirectional else [geometry]
        return [self._solve_for_row_or_total_mass(direction) for direction in directions]

    def build_entropic_limit(self) -> Constraint:
        """Build the constraint in the limit of order 1: `Rows`, `Simplex` or `Balanced`."""
        return {"rows": Rows(), "simplex": Simplex(), "balanced": Balanced(1000, 1e-6)}[self.mass_constraint]

    def _solve_for_row_or_total_mass(self, geometry: Geometry) -> TsallisPlan:
        """Return the plan with fixed row masses or fixed total mass."""
        n, has_potential_per_row = geometry.shape[0], self.mass_constraint == "rows"
        share = 1 / n if has_potential_per_row else 1.0
        logits = geometry.with_link(None, factor=1.0 if self.regularizes_row_shares else share ** (1 - self.order))
        problem, like = TsallisProblem(logits, self.order, has_potential_per_row), logits.log_kernel.inputs[0]
        # The thresholds are of the size of count^(1 - order), which must not overflow.
        count, limit = problem.num_pairs_per_potential, 0.9 * math.log(torch.finfo(like.dtype).max)
        minimum, name = 1 - limit / math.log(max(count, 2)), str(like.dtype).removeprefix("torch.")
        expected = f"at least {minimum:.3g} for {count} pairs that share a mass in {name}"
        check(self.order >= minimum, f"order: must be {expected}, got {self.order!r}; use double precision.", "range")
        potential, empty = run_host_loop(replace(problem, logit_geometry=logits.to_custom_op_input()))
        potential = potential.detach()  # forward-mode differentiation ignores no_grad
        # One further step, differentiated, gives the potential its gradient; if the slopes change too, a second one
        # gives the gradient of the gradient. Neither changes the value: the remaining rounding error is divided off.
        for _ in range(1 if self.order == 2 else 2):
            step, log_total = problem.newton_step_and_log_mass(potential)
            potential = potential + (step - step.detach())
        log_constant = math.log(share) + problem.plan_exponent * math.log(problem.factored_out_base)
        return TsallisPlan(
            geometry=problem.build_base_power_geometry(potential, problem.plan_exponent),
            row_potential=(log_constant - log_total.detach()).masked_fill(empty, log_constant),
            column_potential=None,
            cached_log_row_mass=like.new_full((n,), math.log(share)) if has_potential_per_row else None,
            cost_geometry=geometry,
            problem=problem,
            potential=potential,
        )
