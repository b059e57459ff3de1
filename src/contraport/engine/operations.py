"""Public operations of the engine, such as Sinkhorn half-steps and log-sum-exps.

Each takes a geometry, chooses the backend for it, and is differentiable any number of times in all its arguments; see
`contraport.engine.custom_op`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from contraport.engine.autograd_utilities import autocast_disabled, check_not_in_torch_func
from contraport.engine.backends import choose_backend_config
from contraport.engine.constant_tensor_cache import constant_vector
from contraport.engine.custom_op import BackwardArgs, OperationWithDenseForm, apply_operation
from contraport.engine.fixed_point import FixedPointOperation
from contraport.engine.half_steps import HalfStepsOperation, HalfStepSpec, Relaxation, group_steps_by_pass
from contraport.engine.masked_geometry import Geometry
from contraport.engine.pair_passes import AxisName, PairPasses, WeightTerm
from contraport.errors import UsageError


def run_half_steps(
    geometry: Geometry,
    steps: Sequence[HalfStepSpec],
    log_marginals: tuple[Tensor, Tensor],
    relaxation: Relaxation | None = None,
    initial: Sequence[Tensor] = (),
    empty_value: float = 0.0,
) -> list[Tensor]:
    """Run Sinkhorn half-steps and return one potential for each.

    Consecutive steps on different axes of which neither reads the other share one pass over the pairs.

    Args:
        geometry: the pairs, (N, M).
        steps: the half-steps, in order.
        log_marginals: log a, (N,), and log b, (M,).
        relaxation: relaxation of the marginals; None enforces them exactly.
        initial: potentials that steps may read, of length N or M as their axis needs.
        empty_value: the log-sum of a row or column without weight (all masked, say). Any finite number has no effect
            on the plan and keeps the potentials finite.

    Returns:
        One potential per step, (N,) or (M,).

    Source: Sinkhorn's iteration in the log domain, Peyré and Cuturi (2019), section 4.4; damped, Chizat et al. (2018).

    >>> import torch
    >>> from contraport.engine import Geometry, Gibbs
    >>> x = torch.eye(3)
    >>> uniform = torch.full((3,), 1 / 3).log()
    >>> (f,) = run_half_steps(Geometry(Gibbs("cosine", 1.0)(x, x)), [HalfStepSpec("rows", None)], (uniform, uniform))
    >>> f.exp()  # one over three times the sum of a row: 1 + 2/e
    tensor([0.1920, 0.1920, 0.1920])
    """
    with autocast_disabled(log_marginals[0]):
        passes = len(group_steps_by_pass(steps, len(initial)))
        config, relaxation = choose_backend_config(geometry, len(steps), passes), relaxation or Relaxation()
        operation = HalfStepsOperation(
            config, geometry, tuple(steps), log_marginals, relaxation, tuple(initial), empty_value
        )
        return operation.compute_differentiable_outputs_by_backend()


def row_log_sums(geometry: Geometry, potential: Tensor | None = None) -> Tensor:
    """Return log sum_j exp(log K_ij + potential_j) for each row i, (N,).

    A row without any weight gives minus infinity, without gradient.

    Args:
        geometry: the pairs, (N, M).
        potential: summand of each column, (M,); None is zero.

    Raises:
        UsageError: the potential has another shape.
    """
    return _log_sums(geometry, "rows", potential)


def column_log_sums(geometry: Geometry, potential: Tensor | None = None) -> Tensor:
    """Return log sum_i exp(log K_ij + potential_i) for each column j, (M,).

    A column without any weight gives minus infinity, without gradient.

    Args:
        geometry: the pairs, (N, M).
        potential: summand of each row, (N,); None is zero.
    """
    return _log_sums(geometry, "columns", potential)


def _log_sums(geometry: Geometry, result_axis: AxisName, potential: Tensor | None) -> Tensor:
    """Return the log-sum-exp of each row, or of each column, of log K plus a potential."""
    if potential is not None and potential.shape != (geometry.shape[result_axis == "rows"],):
        size, got = geometry.shape[result_axis == "rows"], tuple(potential.shape)
        raise UsageError(f"potential: must have shape ({size},), got {got}.", kind="shape")
    like = geometry.log_kernel.inputs[0] if potential is None else potential
    zeros = constant_vector(geometry.shape[0], 0.0, like), constant_vector(geometry.shape[1], 0.0, like)
    step, initial = HalfStepSpec(result_axis, 0), [zeros[result_axis == "rows"] if potential is None else potential]
    (negative,) = run_half_steps(geometry, [step], zeros, initial=initial, empty_value=-torch.inf)
    return -negative  # with marginals of 1 a half-step is minus a log-sum


@dataclass(frozen=True, eq=False)
class FixedPlanLinkInputSumsOperation(OperationWithDenseForm):
    """Each row's sum, (N,), of fixed plan entries times inputs of the link.

    They are sum_j P_ij T_ij, with P held fixed and T the log-kernel without a link. Costs are these sums with another
    sign and unit; see `fixed_plan_row_costs`.
    """

    row_potential: Tensor
    column_potential: Tensor

    def compute_differentiable_outputs_densely(self) -> list[Tensor]:
        plan = torch.exp(self.geometry.dense() + self.row_potential[:, None] + self.column_potential).detach()
        return [(plan * self.geometry.log_kernel.with_link(None).dense()).sum(1)]

    @property
    def num_differentiable_outputs(self) -> int:
        return 1

    @property
    def num_nondifferentiable_outputs(self) -> int:
        return 0

    def forward(self, passes: PairPasses) -> list[Tensor]:
        return [passes.plan_link_input_row_sums(self.row_potential, self.column_potential)]

    def empty_outputs_for_tracing(self) -> list[Tensor]:
        return [self.row_potential.new_empty(self.row_potential.shape)]

    def differentiable_inputs(self) -> tuple[Tensor | None, ...]:
        return self.geometry.log_kernel.inputs

    def backward(self, passes: PairPasses, args: BackwardArgs) -> list[Tensor | None]:
        (cotangent,) = args.grad_outputs
        if cotangent is None:
            return [None] * len(args.needs_grad)
        return passes.input_grads(
            [WeightTerm(self.row_potential, self.column_potential, "rows", cotangent)],
            args.needs_grad,
            without_link=True,
        )


def fixed_plan_row_costs(geometry: Geometry, f: Tensor, g: Tensor) -> Tensor:
    """Return the transport cost of each row, (N,), under a fixed plan.

    The cost is sum_j P_ij C_ij, with gradients through C alone. The plan P = exp(log K + f + g) is held fixed.

    Args:
        geometry: the pairs, (N, M).
        f: (N,).
        g: (M,).
    """
    with autocast_disabled(f):
        operation = FixedPlanLinkInputSumsOperation(choose_backend_config(geometry), geometry, f.detach(), g.detach())
        (sums,) = operation.compute_differentiable_outputs_by_backend()
        return -geometry.log_kernel.cost_unit * sums  # C = -cost_unit T


class ConvergedPotentials(NamedTuple):
    """Converged potentials, (N,) and (M,), and the number of iterations if known."""

    row_potential: Tensor
    column_potential: Tensor
    iterations_if_eager: int | None


def run_sinkhorn_to_convergence(
    geometry: Geometry,
    log_marginals: tuple[Tensor, Tensor],
    tolerance: float,
    max_iterations: int,
    relaxation: Relaxation | None = None,
) -> ConvergedPotentials:
    """Run Sinkhorn half-steps to convergence and return the potentials.

    Gradients follow by implicit differentiation. Unless relaxed, the masses of the columns are exact.

    Args:
        geometry: the pairs, (N, M).
        log_marginals: log a, (N,), and log b, (M,); of equal total mass unless relaxed.
        tolerance: stop once another step would change the masses of the rows by less than this in total. Unless
            relaxed, that is the total error of the row masses.
        max_iterations: maximum number of iterations; a warning is issued if they do not suffice.
        relaxation: relaxation of the half-steps on rows and on columns; None enforces the marginals exactly.

    Raises:
        UsageError: within `torch.func`, where the number of steps cannot depend on values; or a cost is NaN.

    Source: Luise et al. (2018), Differential properties of Sinkhorn approximation, theorem 3.
    """
    check_not_in_torch_func("tolerance: a plan is not solved to convergence", "a number of iterations alone")
    with autocast_disabled(log_marginals[0]):
        config, relaxation = choose_backend_config(geometry, num_passes=2 * max_iterations), relaxation or Relaxation()
        operation = FixedPointOperation(config, geometry, log_marginals, relaxation, tolerance, max_iterations)
        f, g, _, _, iterations_made, *_ = apply_operation(operation)
        # The compiler reads no number from a tensor.
        return ConvergedPotentials(f, g, None if torch.compiler.is_compiling() else int(iterations_made))
