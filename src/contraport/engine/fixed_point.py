"""Sinkhorn to convergence, with the gradient by implicit differentiation.

At the fixed point of the half-steps f = F(log a - L(g)), g = G(log b - L'(f)), with L and L' the log-sums of rows and
columns and F and G the identity or relaxed (see `Relaxation`), the gradient does not need the iterations that led
there. With r and c the masses of the rows and columns of P, and s and t the slopes of F and G (1 unless relaxed), the
cotangents of the two equations solve a linear system,

    u / s + P diag(1/c) v = f_bar,      v / t + P^T diag(1/r) u = g_bar,

of which v is eliminated (a Schur complement, symmetric after scaling by the root of s/r) and u is found by conjugate
gradients, each step two weighted sums over the pairs. Why: N + M numbers per iteration instead of an O(N^3) solve, and
no iteration of the forward loop is stored.

Unless relaxed, the system is singular along the constant that f may gain and g lose; that component is projected out.
If the loss has the slopes of a target with the marginals (a, b), as in inverse optimal transport, the right-hand side
vanishes, no step is made, and the gradient in S is plan less target.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport.engine.autograd_utilities import differentiable_gradients
from contraport.engine.custom_op import BackwardArgs, Operation
from contraport.engine.half_steps import Relaxation, row_log_sum_exp
from contraport.engine.masked_geometry import Geometry
from contraport.engine.pair_passes import AxisName, PairPasses, WeightTerm
from contraport.engine.pytree import TreeStructure, unflatten
from contraport.errors import check

MAX_CG_STEPS = 500
"""Maximum number of conjugate gradient steps; the gradient is then returned as it is, with a warning."""

_STORED_AXIS_ORDER: tuple[AxisName, AxisName] = ("rows", "columns")
"""Axes in the order in which marginals, potentials and slopes are stored."""


@dataclass(frozen=True, eq=False)
class FixedPointOperation(Operation):
    """Sinkhorn potentials at convergence, with the gradient by implicit differentiation.

    Its outputs are f and g, the log-sums L(g) and L'(f), 0 where there are no pairs, and the number of iterations, ().
    """

    log_marginals: tuple[Tensor, Tensor]
    relaxation: Relaxation
    tolerance: float
    max_iterations: int

    @property
    def num_differentiable_outputs(self) -> int:
        return 2

    @property
    def num_nondifferentiable_outputs(self) -> int:
        return 3

    def forward(self, passes: PairPasses) -> list[Tensor]:
        (log_a, log_b), relaxation = self.log_marginals, self.relaxation
        references = relaxation.reference_potentials

        def log_sums(q: Tensor | None, p: Tensor | None) -> Tensor:
            by_row, by_column = passes.row_column_log_sums(q, p)
            log_sum = by_row if p is None else by_column
            assert log_sum is not None
            return log_sum.masked_fill(log_sum == -torch.inf, 0)

        start = torch.zeros_like(log_b) if references is None else references[1]
        f = relaxation.damped_clamped_potential(0, "rows", log_a, log_sums(start, None))
        for iteration in range(1, self.max_iterations + 1):
            column_sums = log_sums(None, f)
            g = relaxation.damped_clamped_potential(1, "columns", log_b, column_sums)
            row_sums = log_sums(g, None)
            # The row sums that measure the error are those that the next row step needs: checking costs no pass.
            next_f = relaxation.damped_clamped_potential(0, "rows", log_a, row_sums)
            error = float((torch.exp(f + row_sums) - torch.exp(next_f + row_sums)).abs().sum())
            message = "constraint: a plan with a tolerance requires finite costs, got NaN; see the embeddings."
            check(not math.isnan(error), message, "not_finite")  # no further iteration would change it
            outputs, f = [f, g, row_sums, column_sums, torch.tensor(iteration)], next_f
            if error < self.tolerance:
                break
        else:
            warnings.warn(
                f"after {pluralize(self.max_iterations, 'Sinkhorn iteration')} the row masses are off by more than the "
                f"tolerance {self.tolerance:.3g}; raise iterations or the temperature.",
                stacklevel=2,
            )
        return outputs

    def empty_outputs_for_tracing(self) -> list[Tensor]:
        sides = 2 * self.log_marginals
        return [*(side.new_empty(side.shape) for side in sides), torch.empty((), dtype=torch.int64)]

    def differentiable_inputs(self) -> tuple[Tensor | None, ...]:
        return *self.log_marginals, *self.relaxation.tensors(), *self.geometry.log_kernel.inputs

    def backward(self, passes: PairPasses, args: BackwardArgs) -> list[Tensor | None]:
        point, needs_grad = self._read_fixed_point_and_gradients(args), args.needs_grad
        (f, g), (row_sums, column_sums), (f_bar, g_bar), log_marginals, relaxation = point

        def from_rows(u: Tensor) -> WeightTerm:
            return WeightTerm(-row_sums, g, "rows", u)

        def from_columns(v: Tensor) -> WeightTerm:
            return WeightTerm(f, -column_sums, "columns", v)

        def weighted_kernel_sum(term: WeightTerm) -> Tensor:
            return passes.weighted_kernel_sums([term])[0]

        s, t = point.half_step_derivatives_in_log_marginals()
        # Scaling by the root of s/r makes the Schur complement symmetric, as conjugate gradients need it.
        root_mass = ((f + row_sums) / 2).exp()
        scaling = s.sqrt() / root_mass
        inverse_scaling = s.sqrt() * root_mass

        def schur_complement(y: Tensor) -> Tensor:
            by_column = t * weighted_kernel_sum(from_rows(inverse_scaling * y))
            return y - scaling * weighted_kernel_sum(from_columns(by_column))

        right = scaling * (f_bar - weighted_kernel_sum(from_columns(t * g_bar)))
        if _has_exact_marginals(s, t):
            # The constant that f may gain and g lose, in scaled coordinates: the complement maps it to 0.
            null_vector = root_mass / root_mass.norm()
            right = right - (null_vector @ right) * null_vector
        magnitude = (f_bar * scaling).norm() + (g_bar / ((g + column_sums) / 2).exp()).norm()
        u = inverse_scaling * _solve_by_conjugate_gradients(schur_complement, right, magnitude)
        v = g_bar - weighted_kernel_sum(from_rows(u))
        outer: list[Tensor | None] = [
            torch.zeros_like(value) if needed and value is not None else None
            for value, needed in zip((*log_marginals, *relaxation.tensors()), needs_grad, strict=False)
        ]
        # u is the cotangent of the unrelaxed row step; the gradient of the relaxation needs that of the relaxed one, f.
        before = u if relaxation == Relaxation() else f_bar - weighted_kernel_sum(from_columns(t * v))
        relaxation.backward_to_undamped_potential(0, "rows", log_marginals, row_sums, before, outer)
        v = relaxation.backward_to_undamped_potential(1, "columns", log_marginals, column_sums, v, outer)
        needs_inputs = needs_grad[len(outer) :]
        gradients: list[Tensor | None] = [None for _ in needs_inputs]
        if any(needs_inputs):
            gradients = passes.input_grads([from_rows(-u), from_columns(-v)], needs_inputs)
        return [*outer, *gradients]

    def differentiable_backward(
        self, structure: TreeStructure, tensors: Sequence[Tensor], args: BackwardArgs
    ) -> list[Tensor | None]:
        operation: FixedPointOperation = unflatten(structure, tensors)
        point = operation._read_fixed_point_and_gradients(args)
        (f, g), (u, v) = point.potentials, _solve_adjoint_system_densely(operation.geometry, point)

        def equations(*views: Tensor) -> list[Tensor]:
            at: FixedPointOperation = unflatten(structure, views)
            s = at.geometry.dense()
            log_sums = row_log_sum_exp(s + g, 0), row_log_sum_exp((s + f[:, None]).T, 0)
            return [
                at.relaxation.damped_clamped_potential(k, axis, at.log_marginals[k], log_sums[k])
                for k, axis in enumerate(_STORED_AXIS_ORDER)
            ]

        return differentiable_gradients(equations, tensors, [u, v], args.needs_grad)

    def _read_fixed_point_and_gradients(self, args: BackwardArgs) -> _FixedPointAndGrads:
        """Return the converged potentials, and the gradients of the loss with respect to them."""
        f, g, row_sums, column_sums, *_ = args.outputs
        pairs = zip(args.grad_outputs, self.log_marginals, strict=True)
        f_bar, g_bar = (torch.zeros_like(like) if gradient is None else gradient for gradient, like in pairs)
        log_sums, grads = (row_sums, column_sums), (f_bar, g_bar)
        return _FixedPointAndGrads((f, g), log_sums, grads, self.log_marginals, self.relaxation)


class _FixedPointAndGrads(NamedTuple):
    """Converged Sinkhorn potentials, and the gradients of the loss with respect to them."""

    potentials: tuple[Tensor, Tensor]
    log_sums: tuple[Tensor, Tensor]
    potential_grads: tuple[Tensor, Tensor]
    log_marginals: tuple[Tensor, Tensor]
    relaxation: Relaxation

    def half_step_derivatives_in_log_marginals(self) -> tuple[Tensor, Tensor]:
        """Return each half-step's derivative with respect to its log marginal, (N,) and (M,)."""
        s, t = (
            self.relaxation.derivative_in_log_marginal(k, axis, self.log_marginals[k], self.log_sums[k])
            for k, axis in enumerate(_STORED_AXIS_ORDER)
        )
        return s, t


def _solve_adjoint_system_densely(geometry: Geometry, point: _FixedPointAndGrads) -> tuple[Tensor, Tensor]:
    """Return the solution, (N,) and (M,), of the adjoint system, using a dense matrix."""
    (f, g), (f_bar, g_bar) = point.potentials, point.potential_grads
    s = geometry.dense()
    plan = torch.exp(s + f[:, None] + g)
    rows, columns = plan.sum(1), plan.sum(0)
    by_column = plan / torch.where(columns > 0, columns, 1)
    by_row = plan / torch.where(rows > 0, rows, 1)[:, None]
    row_slope, column_slope = point.half_step_derivatives_in_log_marginals()
    system = torch.eye(len(f), dtype=f.dtype, device=f.device) - (by_column * column_slope) @ (by_row.T * row_slope)
    if _has_exact_marginals(row_slope, column_slope):
        # The system is singular along the constant; adding this outer product makes it invertible and changes the
        # solution along the constant alone.
        system = system + rows[:, None] / rows.sum()
    u = torch.linalg.solve(system, f_bar - by_column @ (column_slope * g_bar))
    return u, g_bar - by_row.T @ (row_slope * u)


def _has_exact_marginals(row_slopes: Tensor, column_slopes: Tensor) -> bool:
    """Return whether the plan attains both marginals exactly, without relaxation."""
    return bool((row_slopes == 1).all() and (column_slopes == 1).all())


def _solve_by_conjugate_gradients(
    multiply: Callable[[Tensor], Tensor], right: Tensor, reference_norm: Tensor
) -> Tensor:
    """Solve a symmetric positive semidefinite linear system by conjugate gradients.

    The tolerance is relative to `reference_norm`, the norm of the terms whose difference is `right`: where the
    difference cancels to rounding noise (a target with the marginals of the plan), no step is made.
    """
    tolerance = (64 * torch.finfo(right.dtype).eps * reference_norm) ** 2
    solution, residual = torch.zeros_like(right), right.clone()
    direction, square = residual.clone(), residual @ residual
    steps = 0
    while square > tolerance and steps < MAX_CG_STEPS:
        image = multiply(direction)
        length = square / (direction @ image)
        solution += length * direction
        residual -= length * image
        square, previous = residual @ residual, square
        direction = residual + (square / previous) * direction
        steps += 1
    if square > tolerance:
        message = f"the gradient of the converged plan is not exact after {MAX_CG_STEPS} conjugate gradient steps"
        warnings.warn(f"{message}; raise the temperature.", stacklevel=2)
    return solution
