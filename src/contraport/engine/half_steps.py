"""Half steps: the potentials of a plan, with a gradient that is exact and costs one pass for all steps.

A half step enforces one marginal, in the log domain::

    rows:     p_i = damping (log a_i - log sum_j exp(S_ij + q_j))
    columns:  q_j = damping (log b_j - log sum_i exp(S_ij + p_i))

InfoNCE is one half step, Sinkhorn alternates them, unbalanced transport damps them.

Backward goes through the steps in reverse with vectors only. The cotangent of log S from all steps shares the factor
e^S, so that it collapses into one weight W = e^S o (U V^T) of rank at most the number of steps, and the gradient in the
embeddings is a single pass over the pairs, however many steps there were.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from contraport.engine.geometry import Geometry
from contraport.engine.passes import Passes, Term, differentiably

Axis: TypeAlias = Literal["rows", "columns"]

OTHER: dict[Axis, Axis] = {"rows": "columns", "columns": "rows"}


class Step(NamedTuple):
    """One half step.

    Attributes:
        axis: whose marginal it enforces, ``"rows"`` or ``"columns"``; its potential has that axis' length.
        source: which potential of the other axis it reads, counted over the given ones and then the steps; None is
            zero.
    """

    axis: Axis
    source: int | None


class HalfSteps(NamedTuple):
    """A list of half steps.

    Attributes:
        steps: in order.
        given: how many potentials are given.
        empty: the log-sum of a row or column of no weight.
    """

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

    def written_down(
        self, geometry: Geometry, log_marginals: tuple[Tensor, Tensor], dampings: Tensor | None, given: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the potential of each step by the definition, for autograd to differentiate."""
        s = geometry.dense()
        potentials = list(given)
        for k, step in enumerate(self.steps):
            oriented, log_marginal = (s, log_marginals[0]) if step.axis == "rows" else (s.T, log_marginals[1])
            if step.source is not None:
                oriented = oriented + potentials[step.source]
            log_sum = oriented.logsumexp(1) if geometry.full else _log_sum_exp(oriented, self.empty)
            potential = log_marginal - log_sum
            potentials.append(potential if dampings is None else dampings[k] * potential)
        return potentials[len(given) :]


def _log_sum_exp(values: Tensor, empty: float) -> Tensor:
    """Return the log-sum-exp of each row, (N, M) to (N,); `empty`, without gradient, where all are minus infinity."""
    maximum = values.detach().amax(1)
    maximum = maximum.masked_fill(maximum == -torch.inf, 0)
    total = (values - maximum[:, None]).exp().sum(1)
    weightless = total == 0
    return (total.masked_fill(weightless, 1).log() + maximum).masked_fill(weightless, empty)


class Scaled(torch.autograd.Function):
    """Half steps by passes, with the collapsed gradient; see `contraport.engine.scale`.

    Its arguments are the passes, the half steps, log a, log b, the dampings, the given potentials and the inputs of the
    log-kernel.
    """

    @staticmethod
    def forward(
        ctx: Any,
        passes: Passes,
        chain: HalfSteps,
        log_a: Tensor,
        log_b: Tensor,
        dampings: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        steps, zeros = chain.steps, {"rows": torch.zeros_like(log_a), "columns": torch.zeros_like(log_b)}
        potentials: list[Tensor] = list(tensors[: chain.given])
        log_sums: list[Tensor] = []
        for batch in chain.batches():
            read = {steps[k].axis: _read(potentials, steps[k], zeros) for k in batch}
            by_row, by_column = passes.log_sum_exp(read.get("rows"), read.get("columns"))
            for k in batch:
                log_sum, log_marginal = (by_row, log_a) if steps[k].axis == "rows" else (by_column, log_b)
                assert log_sum is not None
                potential = log_marginal - log_sum
                if not passes.geometry.full:
                    weightless = log_sum == -torch.inf
                    potential = log_marginal - log_sum.masked_fill(weightless, chain.empty)
                    log_sum = log_sum.masked_fill(weightless, 0)
                log_sums.append(log_sum)
                potentials.append(potential if dampings is None else dampings[k] * potential)
        ctx.passes, ctx.chain = passes, chain
        ctx.save_for_backward(log_a, log_b, dampings, *potentials, *log_sums)
        ctx.set_materialize_grads(False)
        return tuple(potentials[chain.given :])

    @staticmethod
    def backward(ctx: Any, *seeds: Tensor | None) -> tuple[Tensor | None, ...]:
        passes: Passes = ctx.passes
        chain: HalfSteps = ctx.chain
        wanted = ctx.needs_input_grad[2:]
        log_a, log_b, dampings, *saved = ctx.saved_tensors
        if torch.is_grad_enabled():

            def written_down(
                log_a: Tensor, log_b: Tensor, dampings: Tensor | None, *others: Tensor
            ) -> Sequence[Tensor]:
                given, inputs = others[: chain.given], others[chain.given :]
                return chain.written_down(passes.geometry_on(inputs), (log_a, log_b), dampings, given)

            inputs = (log_a, log_b, dampings, *saved[: chain.given], *passes.inputs())
            return (None, None, *differentiably(written_down, inputs, seeds, wanted))
        reached = chain.given + len(chain.steps)
        potentials, log_sums = saved[:reached], saved[reached:]
        return (None, None, *_adjoint(passes, chain, (log_a, log_b), dampings, log_sums, potentials, seeds, wanted))


def _adjoint(
    passes: Passes,
    chain: HalfSteps,
    log_marginals: tuple[Tensor, Tensor],
    dampings: Tensor | None,
    log_sums: Sequence[Tensor],
    potentials: Sequence[Tensor],
    seeds: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """Return the gradients in log a, log b, the dampings, the given potentials and the inputs of the log-kernel."""
    (log_a, log_b), steps, given = log_marginals, chain.steps, chain.given
    zeros = {"rows": torch.zeros_like(log_a), "columns": torch.zeros_like(log_b)}
    cotangents: list[Tensor | None] = [*(None for _ in range(given)), *seeds]
    d_log_a, d_log_b, d_dampings = (
        torch.zeros_like(value) if want and value is not None else None
        for value, want in zip((log_a, log_b, dampings), wanted[:3], strict=True)
    )
    wanted_given, wanted_inputs = wanted[3 : 3 + given], wanted[3 + given :]
    terms: list[Term] = []
    for batch in reversed(list(chain.batches())):
        arriving: list[tuple[int, Term]] = []
        for k in batch:
            step, cotangent = steps[k], cotangents[given + k]
            if cotangent is None:
                continue
            log_marginal, d_log_marginal = (log_a, d_log_a) if step.axis == "rows" else (log_b, d_log_b)
            if d_dampings is not None:
                d_dampings[k] = (cotangent * (log_marginal - log_sums[k])).sum()
            damped = cotangent if dampings is None else dampings[k] * cotangent
            if d_log_marginal is not None:
                d_log_marginal += damped
            # The weights of this step's softmax are exp(S + A + B), A (or B) minus its log-sum, B (or A) what it read.
            exponents = -log_sums[k], _read(potentials, step, zeros)
            log_rows, log_columns = exponents if step.axis == "rows" else exponents[::-1]
            term = Term(log_rows, log_columns, step.axis, -damped)
            terms.append(term)
            if step.source is not None and (step.source >= given or wanted_given[step.source]):
                arriving.append((step.source, term))
        sums = passes.weighted_sum([term for _, term in arriving]) if arriving else []
        for (source, _), total in zip(arriving, sums, strict=True):
            already = cotangents[source]
            cotangents[source] = total if already is None else already + total
    inputs = passes.gradient(terms, wanted_inputs) if terms and any(wanted_inputs) else [None] * len(wanted_inputs)
    return [d_log_a, d_log_b, d_dampings, *cotangents[:given], *inputs]


def _read(potentials: Sequence[Tensor], step: Step, zeros: dict[str, Tensor]) -> Tensor:
    """Return the potential that a step reads, on the axis that it sums over."""
    if step.source is not None:
        return potentials[step.source]
    return zeros["columns" if step.axis == "rows" else "rows"]
