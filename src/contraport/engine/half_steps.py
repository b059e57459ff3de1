"""Sinkhorn half-steps (row or column updates), with gradients in one pass over pairs.

A half-step enforces one marginal, in the log domain::

    rows:     p_i = log a_i - log sum_j exp(S_ij + q_j)
    columns:  q_j = log b_j - log sum_i exp(S_ij + p_i)

InfoNCE is one half-step, Sinkhorn alternates them, unbalanced transport relaxes them.

The backward pass goes through the steps in reverse with vectors only. The softmax weights of every step are e^S times a
factor per row and a factor per column, so the cotangents of S from all steps collapse into one weight
W = e^S o (U V^T), of rank at most the number of steps. The gradient in the embeddings is then a single pass over the
pairs. It is the gradient of the unrolled steps, not an approximation at their limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contraport.engine.autograd_utilities import autocast_disabled, differentiable_gradients, is_in_torch_func
from contraport.engine.constant_tensor_cache import constant_vector
from contraport.engine.custom_op import BackwardArgs, OperationWithDenseForm
from contraport.engine.log_kernels import LOG2E
from contraport.engine.pair_passes import AxisName, PairPasses, WeightTerm
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@accept_deprecated_keywords(source_index="source_potential_index", axis="updated_axis")
@keep_deprecated_attributes(source_index="source_potential_index", axis="updated_axis")
class HalfStepSpec(NamedTuple):
    """Sinkhorn half-step, which updates the row potentials or the column potentials.

    Attributes:
        updated_axis: Axis whose potential the step updates to enforce its marginal, ``"rows"`` or ``"columns"``.
        source_potential_index: Index of the potential of the other axis that the step reads, counted over the initial
            potentials and then the steps; None for a zero potential.
    """

    updated_axis: AxisName
    source_potential_index: int | None


class Relaxation(NamedTuple):
    """Damping and bounds of the potentials, for unbalanced transport.

    The potential is p = r + clamp(damping (log a - r - log sum), -bound, bound).

    Attributes:
        damping_by_step: Damping factor in (0, 1] of each half-step, (steps,); None is 1. A Kullback-Leibler penalty on
            the marginal gives it.
        max_shift_by_step: Largest distance of the potential of each half-step from its reference, (steps,); None is
            infinity. A total variation penalty on the marginal gives it.
        reference_potentials: Reference potentials r of the rows, (N,), and of the columns, (M,); None is zero.
    """

    damping_by_step: Tensor | None = None
    max_shift_by_step: Tensor | None = None
    reference_potentials: tuple[Tensor, Tensor] | None = None

    def damped_clamped_potential(
        self, step_index: int, axis: AxisName, log_marginal: Tensor, log_sum: Tensor
    ) -> Tensor:
        """Return the damped and clamped potential of a half-step."""
        shift = self._undamped_potential_minus_reference(axis, log_marginal, log_sum)
        if self.damping_by_step is not None:
            shift = self.damping_by_step[step_index] * shift
        if self.max_shift_by_step is not None:
            bound = self.max_shift_by_step[step_index]
            shift = torch.clamp(shift, -bound, bound)
        return shift if self.reference_potentials is None else self.reference_potentials[axis == "columns"] + shift

    def derivative_in_log_marginal(
        self, step_index: int, axis: AxisName, log_marginal: Tensor, log_sum: Tensor
    ) -> Tensor:
        """Return the derivative of a half-step's potential with respect to its log marginal."""
        dampings = self.damping_by_step
        derivative = torch.ones_like(log_sum) if dampings is None else dampings[step_index].expand_as(log_sum)
        if self.max_shift_by_step is None:
            return derivative
        undamped_shift = self._undamped_potential_minus_reference(axis, log_marginal, log_sum)
        return derivative.masked_fill(self._clamped_mask(step_index, undamped_shift), 0)

    def backward_to_undamped_potential(
        self,
        step_index: int,
        axis: AxisName,
        log_marginals: tuple[Tensor, Tensor],
        log_sum: Tensor,
        cotangent: Tensor,
        gradients: Sequence[Tensor | None],
    ) -> Tensor:
        """Return the gradient with respect to the undamped and unclamped potential.

        Args:
            step_index: index of the half-step.
            axis: axis of the half-step.
            log_marginals: log a and log b.
            log_sum: log-sum-exp of the half-step.
            cotangent: gradient with respect to the damped and clamped potential.
            gradients: gradients of log a, log b, the dampings, the bounds and the references, to which this step adds
                its share in place; None where no gradient is needed.
        """
        side = int(axis == "columns")
        d_log_marginal, d_dampings, d_bounds, d_reference = gradients[side], *gradients[2:4], gradients[4 + side]
        if d_reference is not None:
            d_reference += cotangent
        if self.max_shift_by_step is not None or d_dampings is not None:
            shift = self._undamped_potential_minus_reference(axis, log_marginals[side], log_sum)
            if self.max_shift_by_step is not None:
                clamped = self._clamped_mask(step_index, shift)
                if d_bounds is not None:
                    d_bounds[step_index] = (cotangent * shift.sign() * clamped).sum()
                cotangent = cotangent.masked_fill(clamped, 0)
            if d_dampings is not None:
                d_dampings[step_index] = (cotangent * shift).sum()
        if self.damping_by_step is not None:
            cotangent = self.damping_by_step[step_index] * cotangent
        if d_log_marginal is not None:
            d_log_marginal += cotangent
        if d_reference is not None:
            d_reference -= cotangent
        return cotangent

    def _undamped_potential_minus_reference(self, axis: AxisName, log_marginal: Tensor, log_sum: Tensor) -> Tensor:
        """Return the change from the reference potential, before damping and clamping."""
        if self.reference_potentials is None:
            return log_marginal - log_sum
        return log_marginal - self.reference_potentials[axis == "columns"] - log_sum

    def _clamped_mask(self, step_index: int, undamped_shift: Tensor) -> Tensor:
        """Return a mask of the potentials that a half-step clamps."""
        assert self.max_shift_by_step is not None
        shift = undamped_shift if self.damping_by_step is None else self.damping_by_step[step_index] * undamped_shift
        return shift.abs() > self.max_shift_by_step[step_index]

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return the damping, bounds and reference potentials as tensors, None where unset."""
        return self.damping_by_step, self.max_shift_by_step, *(self.reference_potentials or (None, None))


MAX_UNSHIFTED_EXPONENT_BY_DTYPE = {torch.float32: 36.0, torch.float64: 300.0}
"""Largest exponent whose exponential is taken directly, without a running maximum.

Two such factors are multiplied and summed over a row: e^(2 * 36) = 2e31 leaves 1e7 columns below the largest float32,
3e38; e^(2 * 300) = 4e260 leaves 4e47 below the largest float64.
"""


def row_log_sum_exp(values: Tensor, value_if_rows_may_be_empty: float | None) -> Tensor:
    """Return the log-sum-exp, (N,), of each row of a matrix (N, M).

    Powers of two take a third of the time of `exp` on a CPU, hence the change of base. The maximum is a constant to
    autograd: its gradient cancels.

    Args:
        values: (N, M).
        value_if_rows_may_be_empty: the result, without gradient, for a row of minus infinities; None if no row is one.
    """
    maximum = values.detach().amax(1)
    if value_if_rows_may_be_empty is not None:
        maximum = maximum.masked_fill(maximum == -torch.inf, 0)  # -inf - -inf would be NaN
    total = (values - maximum[:, None]).mul_(LOG2E).exp2_().sum(1)
    return _log_unless_empty(total, value_if_rows_may_be_empty, maximum)


def _log_unless_empty(total: Tensor, empty_log_sum: float | None, shift: Tensor | None = None) -> Tensor:
    """Return log(total) + shift, or `empty_log_sum` where `total` is 0."""
    if empty_log_sum is None:
        return total.log() if shift is None else total.log() + shift
    weightless = total == 0
    log_total = total.masked_fill(weightless, 1).log()  # the gradient of log 0 is NaN even where it is masked later
    return (log_total if shift is None else log_total + shift).masked_fill(weightless, empty_log_sum)


def _run_log_domain_steps(
    steps: tuple[HalfStepSpec, ...],
    s: Tensor,
    log_marginals: tuple[Tensor, Tensor],
    initial: Sequence[Tensor] = (),
    relaxation: Relaxation = Relaxation(),  # noqa: B008  (a constant)
    empty_log_sum: float | None = None,
    exp_s: Tensor | None = None,
) -> list[Tensor]:
    """Run Sinkhorn half-steps on a dense log-kernel, and return the potentials.

    `exp_s` is e^S, or None if that may overflow.
    """
    potentials = list(initial)
    for k, (axis, source) in enumerate(steps):
        side = int(axis == "columns")
        if source is None and exp_s is not None:
            log_sum = _log_unless_empty(exp_s.sum(1 - side), empty_log_sum)
        else:
            oriented = s.T if side else s
            log_sum = row_log_sum_exp(oriented if source is None else oriented + potentials[source], empty_log_sum)
        potentials.append(relaxation.damped_clamped_potential(k, axis, log_marginals[side], log_sum))
    return potentials[len(initial) :]


class _HalfStepsByScaling(torch.autograd.Function):
    """Autograd function of Sinkhorn half-steps, computed as matrix-vector products.

    Backward is one such product per step, and K times a matrix of rank at most the number of steps; see the module.
    """

    @staticmethod
    def forward(
        ctx: Any, steps: tuple[HalfStepSpec, ...], s: Tensor, log_a: Tensor, log_b: Tensor
    ) -> tuple[Tensor, ...]:
        kernel = s.mul(LOG2E).exp2_()  # powers of two are faster than `exp` on a CPU
        potentials: list[Tensor] = []
        sums, scalings = [], []
        for axis, source in steps:
            matrix, log_marginal = (kernel, log_a) if axis == "rows" else (kernel.T, log_b)
            scalings.append(constant_vector(matrix.shape[1], 1.0, s) if source is None else potentials[source].exp())
            sums.append(matrix @ scalings[-1])
            potentials.append(log_marginal - sums[-1].log())
        ctx.steps = steps
        ctx.save_for_backward(s, log_a, log_b, kernel, *sums, *scalings)
        ctx.set_materialize_grads(False)
        return tuple(potentials)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        steps, (s, log_a, log_b, kernel, *vectors) = ctx.steps, ctx.saved_tensors
        with autocast_disabled(s):
            if torch.is_grad_enabled():
                return None, *differentiable_gradients(
                    lambda s, *log_marginals: _run_log_domain_steps(steps, s, log_marginals),
                    [s, log_a, log_b],
                    grad_outputs,
                    ctx.needs_input_grad[1:],
                )
            cotangents, rows, columns = list(grad_outputs), [], []
            d_marginals: list[Tensor | None] = [None, None]
            for k in reversed(range(len(steps))):
                (axis, source), cotangent, total, scaling = steps[k], cotangents[k], vectors[k], vectors[len(steps) + k]
                if cotangent is None:
                    continue
                side = int(axis == "columns")
                if ctx.needs_input_grad[2 + side]:
                    previous = d_marginals[side]
                    d_marginals[side] = cotangent if previous is None else previous + cotangent
                weight = cotangent / total
                rows.append(scaling if side else weight)
                columns.append(weight if side else scaling)
                if source is not None:
                    through = ((kernel if side else kernel.T) @ weight).mul_(scaling)
                    previous = cotangents[source]
                    cotangents[source] = -through if previous is None else previous - through
            d_s = None
            if ctx.needs_input_grad[1] and rows:
                d_s = torch.stack(rows, 1) @ torch.stack(columns)
                d_s = d_s.mul_(kernel).neg_()
            return None, d_s, *d_marginals


def group_steps_by_pass(steps: Sequence[HalfStepSpec], num_initial: int = 0) -> list[list[int]]:
    """Group consecutive half-steps that one pass over the pairs can compute.

    Two consecutive steps share a pass if they are on different axes and the second does not read the first.
    """
    batches, k = [], 0
    while k < len(steps):
        pair = steps[k : k + 2]
        shared = len(pair) == 2 and pair[0].updated_axis != pair[1].updated_axis
        shared = shared and pair[1].source_potential_index != num_initial + k
        batches.append([k, k + 1] if shared else [k])
        k += 1 + shared
    return batches


@dataclass(frozen=True, eq=False)
class HalfStepsOperation(OperationWithDenseForm):
    """Sinkhorn half-steps, with a gradient in one pass over the pairs."""

    steps: tuple[HalfStepSpec, ...]
    log_marginals: tuple[Tensor, Tensor]
    relaxation: Relaxation
    initial: tuple[Tensor, ...]
    empty_log_sum: float

    def compute_differentiable_outputs_densely(self) -> list[Tensor]:
        s = self.geometry.dense()
        if self.steps[-1].source_potential_index is not None and self._can_use_scalings(s.dtype):
            potentials: tuple[Tensor, ...] = _HalfStepsByScaling.apply(self.steps, s, *self.log_marginals)
            return list(potentials)
        # One exponential serves all steps that read no potential. MAX_UNSHIFTED_EXPONENT_BY_DTYPE bounds factors of
        # which two are multiplied; here is one, hence twice as far.
        limit = 2 * MAX_UNSHIFTED_EXPONENT_BY_DTYPE.get(s.dtype, 0.0)
        moderate = self.geometry.log_kernel.a_priori_absolute_bound <= limit
        exp_s = s.exp() if moderate and self.steps[0].source_potential_index is None else None
        empty_log_sum = None if self.geometry.has_finite_log_sums else self.empty_log_sum
        return _run_log_domain_steps(
            self.steps, s, self.log_marginals, self.initial, self.relaxation, empty_log_sum, exp_s
        )

    def _can_use_scalings(self, dtype: torch.dtype) -> bool:
        """Return whether half-steps can skip the log domain without overflow or underflow.

        Without masks, the potentials of strict half-steps differ among themselves by at most 2 B, where |S| <= B. With
        masks, a half-step on M columns adds at most B + log(M) / 2 to half that difference.
        """
        if is_in_torch_func() or torch.compiler.is_compiling():
            return False
        limit = MAX_UNSHIFTED_EXPONENT_BY_DTYPE.get(dtype, 0.0)
        bound = self.geometry.log_kernel.a_priori_absolute_bound
        strict = not self.initial and all(v is None for v in self.relaxation) and self.geometry.has_finite_log_sums
        if not strict:
            return False
        if not self.geometry.masks:
            return 2 * bound <= limit
        return len(self.steps) * (bound + math.log(max(self.geometry.shape)) / 2) <= 2 * limit

    @property
    def num_differentiable_outputs(self) -> int:
        return len(self.steps)  # the potential of each step

    @property
    def num_nondifferentiable_outputs(self) -> int:
        return len(self.steps)  # the log-sums of each step

    def forward(self, passes: PairPasses) -> list[Tensor]:
        potentials, log_sums = list(self.initial), []
        for batch in group_steps_by_pass(self.steps, len(self.initial)):
            steps = [self.steps[k] for k in batch]
            read = {step.updated_axis: self._input_potential_or_zeros(potentials, step) for step in steps}
            sums = passes.row_column_log_sums(read.get("rows"), read.get("columns"))
            for k, (axis, _) in zip(batch, steps, strict=True):
                side = int(axis == "columns")
                log_sum = sums[side]
                assert log_sum is not None
                filled = log_sum
                if not self.geometry.has_finite_log_sums:
                    # The gradient divides by the sums: an empty row keeps a log-sum of 0 there, so that its weights,
                    # exp(-inf - 0), vanish instead of becoming NaN.
                    weightless = log_sum == -torch.inf
                    filled = log_sum.masked_fill(weightless, self.empty_log_sum)
                    log_sum = log_sum.masked_fill(weightless, 0)
                log_sums.append(log_sum)
                potentials.append(self.relaxation.damped_clamped_potential(k, axis, self.log_marginals[side], filled))
        return [*potentials[len(self.initial) :], *log_sums]

    def empty_outputs_for_tracing(self) -> list[Tensor]:
        sides = [self.log_marginals[step.updated_axis == "columns"] for step in self.steps]
        return [side.new_empty(side.shape) for side in 2 * sides]

    def differentiable_inputs(self) -> tuple[Tensor | None, ...]:
        return *self.log_marginals, *self.relaxation.tensors(), *self.initial, *self.geometry.log_kernel.inputs

    def backward(self, passes: PairPasses, args: BackwardArgs) -> list[Tensor | None]:
        steps, num_initial = self.steps, len(self.initial)
        potentials, log_sums = [*self.initial, *args.outputs[: len(steps)]], args.outputs[len(steps) :]
        cotangents: list[Tensor | None] = [*(None for _ in range(num_initial)), *args.grad_outputs]
        outer = [
            torch.zeros_like(value) if needed and value is not None else None
            for value, needed in zip((*self.log_marginals, *self.relaxation.tensors()), args.needs_grad, strict=False)
        ]
        needs_initial = args.needs_grad[len(outer) : len(outer) + num_initial]
        needs_inputs = args.needs_grad[len(outer) + num_initial :]
        terms: list[WeightTerm] = []
        for batch in reversed(group_steps_by_pass(steps, num_initial)):
            sources: list[tuple[int, WeightTerm]] = []
            for k in batch:
                step, axis, cotangent = steps[k], steps[k].updated_axis, cotangents[num_initial + k]
                if cotangent is None:
                    continue
                cotangent = self.relaxation.backward_to_undamped_potential(
                    k, axis, self.log_marginals, log_sums[k], cotangent, outer
                )
                # The softmax weights of a row step are exp(S + A + B) with A minus its log-sums and B the potential
                # that it read; of a column step with A and B exchanged.
                exponents = -log_sums[k], self._input_potential_or_zeros(potentials, step)
                row_exponents, column_exponents = exponents if axis == "rows" else exponents[::-1]
                term = WeightTerm(row_exponents, column_exponents, axis, -cotangent)
                terms.append(term)
                if step.source_potential_index is not None and (
                    step.source_potential_index >= num_initial or needs_initial[step.source_potential_index]
                ):
                    sources.append((step.source_potential_index, term))
            sums = passes.weighted_kernel_sums([term for _, term in sources]) if sources else []
            for (source, _), total in zip(sources, sums, strict=True):
                previous = cotangents[source]
                cotangents[source] = total if previous is None else previous + total
        # The one pass over the pairs that touches the embeddings, for the terms of all steps together.
        inputs = passes.input_grads(terms, needs_inputs) if terms and any(needs_inputs) else [None] * len(needs_inputs)
        return [*outer, *cotangents[:num_initial], *inputs]

    def _input_potential_or_zeros(self, potentials: Sequence[Tensor], step: HalfStepSpec) -> Tensor:
        """Return the potential that a half-step starts from, zeros by default."""
        if step.source_potential_index is not None:
            return potentials[step.source_potential_index]
        return torch.zeros_like(self.log_marginals[step.updated_axis == "rows"])
