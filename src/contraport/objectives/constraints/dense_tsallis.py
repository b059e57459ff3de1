"""Tsallis-regularized transport on the whole matrix, by Newton's method in the dual.

The plan is P_ij = [(order - 1) (f_i + g_j - C_ij) / temperature]_+^(1 / (order - 1)) with dual potentials f and g. It
is differentiable twice: the last Newton steps are taken with gradient, which is implicit differentiation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contraport.engine import Geometry
from contraport.errors import UsageError, check
from contraport.objectives.plan import DensePlan

_TEMPERATURE_DIVISOR_PER_STAGE = 4.0
"""Factor by which the temperature falls from one stage to the next."""


class DenseTsallisPlan(DensePlan):
    """Tsallis plan held as a matrix, differentiable in costs and marginals."""

    def quadratic_conjugate(self) -> Tensor:
        """Return the maximum of <logits, P> - |P|^2 / 2 over whole plans P, a scalar.

        The logits are -C / temperature. It is computed as the dual value |P|^2 / 2 - <f, a> - <g, b>, whose first
        derivative in the potentials is 0, but not its second: they are not detached.
        """
        unit, marginals = self.kernel_geometry.log_kernel.cost_unit, self.log_marginals
        assert marginals is not None
        pairs = zip(self.dual_potentials, marginals, strict=True)
        linear = torch.stack([(potential / unit) @ log_mass.to(potential).exp() for potential, log_mass in pairs])
        return self.masses.square().sum() / 2 - linear.sum()


def solve_dense_tsallis(
    geometry: Geometry, order: float, mass_constraint: str, log_a: Tensor, log_b: Tensor
) -> DenseTsallisPlan:
    """Solve Tsallis-regularized transport with given marginals, and return a dense plan.

    The plan minimizes <C, P> + temperature sum P^order / (order (order - 1)).

    Args:
        geometry: compared pairs, (N, M), under a `Gibbs` kernel.
        order: above 0, at most 2, not 1.
        mass_constraint: ``"balanced"``, rows have the masses a and columns b; ``"rows"``, rows have the masses a;
            ``"simplex"``, the total mass is that of a.
        log_a: log masses of the rows, (N,).
        log_b: log masses of the columns, (M,).

    Raises:
        UsageError: a row or a column with mass has no compared pair, or the iteration does not converge.

    Source: for order 2, Lorenz, Manns and Meyer (2021), Quadratically regularized optimal transport, algorithm 2.
    """
    logits = geometry.with_link(None)
    theta, a, b = logits.dense().double(), log_a.double().exp(), log_b.double().exp()
    if mass_constraint == "simplex":
        shape = theta.shape
        theta, a = theta.reshape(1, -1), a.sum()[None]
    good = not bool(theta.isnan().any())
    check(good, "constraint: Tsallis requires finite costs, got NaN; see the embeddings.", "not_finite")
    compared = theta > -torch.inf
    has_pairs = compared.any(1).all() & (mass_constraint != "balanced" or compared.any(0).all())
    check(bool(has_pairs), "constraint: no plan exists, as a row or a column has no compared pair.", "infeasible")
    dual = _TsallisDualProblem(theta.detach(), order, a.detach(), b.detach() if mass_constraint == "balanced" else None)
    f, g = _maximize_dual(dual)
    # In units of the temperature; the steps have the value 0. The first has the gradient of the solution; if the slopes
    # change too, a second one with the same matrix has the gradient of the gradient.
    newton_steps = dual.build_newton_solver(f, g)
    for _ in range(1 if order == 2 else 2):
        p = _tsallis_masses(f[:, None] + g + theta, order)
        residuals = [a - p.sum(1), b - p.sum(0)] if mass_constraint == "balanced" else [a - p.sum(1)]
        steps = newton_steps(torch.cat(residuals))
        f, g = f + steps[0] - steps[0].detach(), g + steps[1] - steps[1].detach()
    masses = _tsallis_masses(f[:, None] + g + theta, order)
    if mass_constraint == "simplex":
        masses, f, g = masses.view(shape), f.expand(shape[0]), f.new_zeros(shape[1])
    scale = logits.log_kernel.cost_unit
    return DenseTsallisPlan.from_masses(masses, logits, (log_a, log_b), (scale * f, scale * g))


def _tsallis_masses(shifted_logits: Tensor, order: float) -> Tensor:
    """Return the masses [(order - 1) s]_+^(1 / (order - 1)) of s = logits + potentials."""
    base = (order - 1) * shifted_logits
    present = (base > 0) & torch.isfinite(base)
    powers: Tensor = torch.where(present, torch.where(present, base, 1) ** (1 / (order - 1)), 0)
    return powers


@dataclass(frozen=True, eq=False)
class _TsallisDualProblem:
    """Dual problem of Tsallis transport, with costs divided by the temperature."""

    logits: Tensor
    order: float
    row_masses: Tensor
    column_masses: Tensor | None  # None if free

    def flat_gradient(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the dual gradient, which is the missing mass of rows and columns."""
        plan = _tsallis_masses(f[:, None] + g + self.logits, self.order)
        rows = self.row_masses - plan.sum(1)
        return rows if self.column_masses is None else torch.cat([rows, self.column_masses - plan.sum(0)])

    def objective_value(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the dual objective as a scalar, which is -inf outside its domain."""
        s = f[:, None] + g + self.logits
        linear = f @ self.row_masses + (0 if self.column_masses is None else g @ self.column_masses)
        if self.order < 1 and bool((s >= 0).any()):
            return linear.new_tensor(-torch.inf)
        return linear - (_tsallis_masses(s, self.order) ** self.order).sum() / self.order

    def build_newton_solver(
        self, f: Tensor, g: Tensor, ridge: float = 0.0
    ) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """Return a function from dual gradients to Newton steps of the potentials f and g."""
        n = len(f)
        plan = _tsallis_masses(f[:, None] + g + self.logits, self.order)
        weights = torch.where(plan > 0, torch.where(plan > 0, plan, 1) ** (2 - self.order), 0)
        rows = weights.sum(1)
        if self.column_masses is None:
            return lambda residual: (residual / torch.where(rows > 0, rows, 1), torch.zeros_like(g))
        hessian = torch.cat([torch.cat([rows.diag(), weights], 1), torch.cat([weights.T, weights.sum(0).diag()], 1)])
        # Scaled to a unit diagonal, as orders below 2 have weights of very different sizes.
        diagonal = hessian.diagonal()
        scale = torch.where(diagonal > 0, diagonal, 1).rsqrt()
        hessian = scale[:, None] * hessian * scale
        if ridge > 0:
            factor = torch.linalg.cholesky(hessian + ridge * torch.eye(len(scale)).to(hessian))
        else:
            values, vectors = torch.linalg.eigh(hessian)
            kept = values > 1e-11 * values[-1]  # adding a constant to f and taking it from g has the eigenvalue 0
            values, vectors = values[kept], vectors[:, kept]

        def newton_steps(residual: Tensor) -> tuple[Tensor, Tensor]:
            right = scale * residual
            if ridge > 0:
                step = scale * torch.cholesky_solve(right[:, None], factor)[:, 0]
            else:
                step = scale * (vectors @ ((vectors.T @ right) / values))
            return step[:n], step[n:]

        return newton_steps


@torch.no_grad()
def _maximize_dual(dual: _TsallisDualProblem) -> tuple[Tensor, Tensor]:
    """Return the row and column potentials that maximize the dual objective."""
    finite = dual.logits[torch.isfinite(dual.logits)]
    spread = float(finite.max() - finite.min()) if dual.column_masses is not None else 0.0
    # At the first temperature the logits differ by at most 10.
    stages = max(0, math.ceil(math.log(max(spread, 1.0) / 10.0, _TEMPERATURE_DIVISOR_PER_STAGE)))
    f, g = torch.zeros_like(dual.logits[:, 0]), torch.zeros_like(dual.logits[0])
    for stage in range(stages, -1, -1):
        one = replace(dual, logits=dual.logits / _TEMPERATURE_DIVISOR_PER_STAGE**stage)
        f = _solve_row_potentials(g + one.logits, dual.order, dual.row_masses)
        if dual.column_masses is not None:
            for _ in range(5):
                g = _solve_row_potentials((f[:, None] + one.logits).T, dual.order, dual.column_masses)
                f = _solve_row_potentials(g + one.logits, dual.order, dual.row_masses)
        f, g = _run_damped_newton(one, f, g, tolerance=1e-12 if stage == 0 else 1e-2)
        if stage > 0:
            g = _TEMPERATURE_DIVISOR_PER_STAGE * (g - g.mean())
    return f, g


def _run_damped_newton(dual: _TsallisDualProblem, f: Tensor, g: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Return the dual potentials after damped Newton steps.

    They end when the marginal error is within `tolerance` or no longer falls. The error is in L1, relative to the total
    mass.

    Raises:
        UsageError: the error stays above 1e-6 of the total mass.
    """
    total, value = dual.row_masses.sum(), dual.objective_value(f, g)
    residual = dual.flat_gradient(f, g)
    for _ in range(200):
        error = residual.abs().sum()
        if error <= tolerance * total:
            break
        # The pairs with mass may not connect all rows and columns; the ridge moves parts that have too much or little.
        ridge = min(1e-2, float(error / total))
        step_f, step_g = dual.build_newton_solver(f, g, ridge=max(ridge, 1e-10))(residual)
        slope = residual @ torch.cat([step_f, step_g])[: len(residual)]
        for halving in range(40):
            size = 0.5**halving
            trial = f + size * step_f, g + size * step_g
            new, remaining = dual.objective_value(*trial), dual.flat_gradient(*trial)
            # Near the end the objective no longer resolves a step, whose residual still falls.
            falls = bool(torch.isfinite(new)) and bool(remaining.abs().sum() < 0.5 * error)
            if falls or new >= value + 1e-4 * size * slope:
                break
        else:
            break
        (f, g), value, residual = trial, new, remaining
    error = residual.abs().sum()
    if not bool(error <= max(tolerance, 1e-6) * total):
        message = f"constraint: the plan of Tsallis did not converge, marginal error {error:.2g}."
        raise UsageError(f"{message} Raise the temperature.", kind="not_converged")
    return f, g


def _solve_row_potentials(logits: Tensor, order: float, row_masses: Tensor) -> Tensor:
    """Return the row potentials, (N,), for given row masses, by bisection."""
    largest = logits.amax(1)
    count = logits.shape[1]
    # A row with all its mass on its best pair, or evenly on all pairs, bounds its potential.
    bounds = torch.stack([row_masses ** (order - 1), (row_masses / count) ** (order - 1)]) / (order - 1) - largest
    low, high = bounds.amin(0), bounds.amax(0)
    for _ in range(60):  # these determine the last bit
        middle = (low + high) / 2
        too_light = _tsallis_masses(middle[:, None] + logits, order).sum(1) < row_masses
        low, high = torch.where(too_light, middle, low), torch.where(too_light, high, middle)
    return (low + high) / 2
