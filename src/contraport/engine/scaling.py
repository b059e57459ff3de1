"""Scaling: the potentials of a plan, by half steps, with a gradient that is exact and costs one pass for all steps.

A half step enforces one marginal, in the log domain::

    rows:     p_i = damping (log a_i - log sum_j exp(S_ij + q_j))
    columns:  q_j = damping (log b_j - log sum_i exp(S_ij + p_i))

InfoNCE is one half step, Sinkhorn alternates them, unbalanced transport damps them. `scale` runs any list of half steps
and is differentiable in the embeddings, the temperature, the marginals, the dampings and the potentials it starts from.

Backward goes through the steps in reverse with vectors only. The cotangent of log S from all steps shares the factor
e^S, so that it collapses into one weight W = e^S o (U V^T) of rank at most the number of steps, and the gradient in the
embeddings is a single pass over the pairs, however many steps there were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from contraport.engine.geometry import Geometry
from contraport.engine.passes import Passes, Term
from contraport.engine.policies import passes_for

Axis: TypeAlias = Literal["rows", "columns"]


class Step(NamedTuple):
    """One half step.

    Attributes:
        axis: whose marginal it enforces, ``"rows"`` or ``"columns"``; its potential has that axis' length.
        source: which potential of the other axis it reads, counted over the given ones and then the steps; None is
            zero.
    """

    axis: Axis
    source: int | None


def scale(
    geometry: Geometry,
    steps: Sequence[Step],
    log_marginals: tuple[Tensor, Tensor],
    dampings: Tensor | None = None,
    given: Sequence[Tensor] = (),
    empty: float = 0.0,
) -> list[Tensor]:
    """Run half steps and return the potential of each.

    Consecutive steps on different axes of which neither reads the other share one pass over the pairs.

    Args:
        geometry: the pairs, (N, M).
        steps: the half steps, in order.
        log_marginals: log a, (N,), and log b, (M,).
        dampings: one factor in (0, 1] per step, (len(steps),); None is 1 throughout.
        given: potentials that steps may read, of length N or M as their axis needs.
        empty: the log-sum of a row or column of no weight (all masked, say). Any finite number leaves it without effect
            on the plan and keeps the potentials finite.

    Returns:
        One potential per step, (N,) or (M,).

    Source: Sinkhorn's iteration in the log domain, Peyré and Cuturi (2019), section 4.4; damped, Chizat et al. (2018).

    >>> import torch
    >>> from contraport.engine import Geometry, Gibbs
    >>> x = torch.eye(3)
    >>> uniform = torch.full((3,), 1 / 3).log()
    >>> (f,) = scale(Geometry(Gibbs("cosine", 1.0)(x, x)), [Step("rows", None)], (uniform, uniform))
    >>> f.exp()  # one over three times the sum of a row: 1 + 2/e
    tensor([0.1920, 0.1920, 0.1920])
    """
    if dampings is None:
        dampings = torch.ones(len(steps), dtype=log_marginals[0].dtype, device=log_marginals[0].device)
    with torch.autocast(log_marginals[0].device.type, enabled=False):
        passes = passes_for(geometry)
        if passes is None:
            return _scale_dense(geometry, steps, log_marginals, dampings, given, empty)
        problem = _Problem(passes, tuple(steps), len(given), empty)
        return list(_Scale.apply(problem, *log_marginals, dampings, *given, *_inputs(passes)))


def log_sums(geometry: Geometry, axis: Axis, potential: Tensor) -> Tensor:
    """Return log sum_j exp(S_ij + q_j), (N,), for axis ``"rows"``, or its mirror, (M,), for ``"columns"``.

    Where a row (column) has no weight at all the result is minus infinity, without gradient.

    Args:
        geometry: the pairs.
        axis: which axis is kept.
        potential: q, (M,), or for ``"columns"`` p, (N,).
    """
    n, m = geometry.shape
    zeros = potential.new_zeros(n), potential.new_zeros(m)
    (negative,) = scale(geometry, [Step(axis, 0)], zeros, given=[potential], empty=-torch.inf)
    return -negative


def held_total(geometry: Geometry, f: Tensor, g: Tensor) -> Tensor:
    """Return sum_ij P_ij T_ij with P = exp(log K + f + g) held fixed: differentiable through T alone.

    As the cost is -unit T, this is minus the transport cost of P in that unit, and its gradient is that of the cost.

    Args:
        geometry: the pairs, (N, M).
        f: (N,).
        g: (M,).
    """
    with torch.autocast(f.device.type, enabled=False):
        passes = passes_for(geometry)
        if passes is not None:
            total: Tensor = _HeldTotal.apply(passes, f.detach(), g.detach(), *_inputs(passes))
            return total
        plan = torch.exp(geometry.dense() + f[:, None] + g).detach()
        return (plan * geometry.log_kernel.reshape(None).dense()).sum()


def _scale_dense(
    geometry: Geometry,
    steps: Sequence[Step],
    log_marginals: tuple[Tensor, Tensor],
    dampings: Tensor,
    given: Sequence[Tensor],
    empty: float,
) -> list[Tensor]:
    """The oracle: the definition written down, differentiated by autograd."""
    s = geometry.dense()
    potentials = list(given)
    for step, damping in zip(steps, dampings, strict=True):
        oriented, log_marginal = (s, log_marginals[0]) if step.axis == "rows" else (s.T, log_marginals[1])
        if step.source is not None:
            oriented = oriented + potentials[step.source]
        potentials.append(damping * (log_marginal - _log_sum_exp(oriented, empty)))
    return potentials[len(given) :]


def _log_sum_exp(values: Tensor, empty: float) -> Tensor:
    """Return the log-sum-exp of each row, (N, M) to (N,); `empty`, without gradient, where all are minus infinity."""
    maximum = values.detach().amax(1)
    maximum = maximum.masked_fill(maximum == -torch.inf, 0)
    total = (values - maximum[:, None]).exp().sum(1)
    weightless = total == 0
    return (total.masked_fill(weightless, 1).log() + maximum).masked_fill(weightless, empty)


class _Problem(NamedTuple):
    """What `_Scale` needs beside its tensors."""

    passes: Passes
    steps: tuple[Step, ...]
    given: int
    empty: float

    def batches(self) -> Iterator[list[int]]:
        """Yield the steps' positions in order, two together where one pass serves both."""
        position = 0
        while position < len(self.steps):
            batch = [position]
            if position + 1 < len(self.steps):
                here, there = self.steps[position : position + 2]
                if here.axis != there.axis and there.source != self.given + position:
                    batch.append(position + 1)
            yield batch
            position += len(batch)


class _Scale(torch.autograd.Function):
    """Half steps over tiles, with the collapsed gradient."""

    @staticmethod
    def forward(
        ctx: Any, problem: _Problem, log_a: Tensor, log_b: Tensor, dampings: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        steps, zeros = problem.steps, {"rows": torch.zeros_like(log_a), "columns": torch.zeros_like(log_b)}
        potentials: list[Tensor] = list(tensors[: problem.given])
        log_sums: list[Tensor] = []
        for batch in problem.batches():
            read = {steps[k].axis: _read(potentials, steps[k], zeros) for k in batch}
            by_row, by_column = problem.passes.log_sum_exp(read.get("rows"), read.get("columns"))
            for k in batch:
                log_sum, log_marginal = (by_row, log_a) if steps[k].axis == "rows" else (by_column, log_b)
                assert log_sum is not None
                weightless = log_sum == -torch.inf
                log_sums.append(log_sum.masked_fill(weightless, 0))
                potentials.append(dampings[k] * (log_marginal - log_sum.masked_fill(weightless, problem.empty)))
        ctx.problem = problem
        ctx.save_for_backward(log_a, log_b, dampings, *log_sums, *potentials)
        ctx.set_materialize_grads(False)
        return tuple(potentials[problem.given :])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *seeds: Tensor | None) -> tuple[Tensor | None, ...]:
        problem: _Problem = ctx.problem
        steps, given = problem.steps, problem.given
        log_a, log_b, dampings, *saved = ctx.saved_tensors
        log_sums, potentials = saved[: len(steps)], saved[len(steps) :]
        zeros = {"rows": torch.zeros_like(log_a), "columns": torch.zeros_like(log_b)}
        cotangents: list[Tensor | None] = [*(None for _ in range(given)), *seeds]
        d_log_a, d_log_b, d_dampings = (
            torch.zeros_like(value) if wanted else None
            for value, wanted in zip((log_a, log_b, dampings), ctx.needs_input_grad[1:4], strict=True)
        )
        terms: list[Term] = []
        for batch in reversed(list(problem.batches())):
            arriving: list[tuple[int, Term]] = []
            for k in batch:
                step, cotangent = steps[k], cotangents[given + k]
                if cotangent is None:
                    continue
                log_marginal, d_log_marginal = (log_a, d_log_a) if step.axis == "rows" else (log_b, d_log_b)
                if d_dampings is not None:
                    d_dampings[k] = (cotangent * (log_marginal - log_sums[k])).sum()
                if d_log_marginal is not None:
                    d_log_marginal += dampings[k] * cotangent
                # The weights of this step's softmax are exp(S + A + B), A (or B) minus its log-sum, B (or A) what it
                # read.
                exponents = -log_sums[k], _read(potentials, step, zeros)
                log_rows, log_columns = exponents if step.axis == "rows" else exponents[::-1]
                term = Term(log_rows, log_columns, step.axis, -dampings[k] * cotangent)
                terms.append(term)
                if step.source is not None and (step.source >= given or ctx.needs_input_grad[4 + step.source]):
                    arriving.append((step.source, term))
            sums = problem.passes.weighted_sum([term for _, term in arriving]) if arriving else []
            for (source, _), total in zip(arriving, sums, strict=True):
                already = cotangents[source]
                cotangents[source] = total if already is None else already + total
        wanted = ctx.needs_input_grad[4 + given :]
        inputs = problem.passes.gradient(terms, wanted) if terms and any(wanted) else [None] * len(wanted)
        return (None, d_log_a, d_log_b, d_dampings, *cotangents[:given], *inputs)


class _HeldTotal(torch.autograd.Function):
    """A total that is linear in T, its gradient found along with it."""

    @staticmethod
    def forward(ctx: Any, passes: Passes, f: Tensor, g: Tensor, *inputs: Tensor) -> Tensor:
        total, gradients = passes.held_total(f, g, ctx.needs_input_grad[3:])
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, seed: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *(None if v is None else seed * v for v in ctx.saved_tensors))


def _inputs(passes: Passes) -> tuple[Tensor | None, ...]:
    """Return the log-kernel's inputs, each tensor once, as `torch.compile` wants it; its gradient is that of both."""
    inputs = passes.log_kernel.inputs
    return (inputs[0], None, inputs[2], None) if passes.symmetric else inputs


def _read(potentials: Sequence[Tensor], step: Step, zeros: dict[str, Tensor]) -> Tensor:
    """Return the potential that a step reads, on the axis that it sums over."""
    if step.source is not None:
        return potentials[step.source]
    return zeros["columns" if step.axis == "rows" else "rows"]
