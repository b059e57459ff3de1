"""Half steps: the potentials of a plan, with a gradient that is exact and costs one pass for all steps.

A half step enforces one marginal, in the log domain::

    rows:     p_i = log a_i - log sum_j exp(S_ij + q_j)
    columns:  q_j = log b_j - log sum_i exp(S_ij + p_i)

InfoNCE is one half step, Sinkhorn alternates them, unbalanced transport gives them slack.

Backward goes through the steps in reverse with vectors only. The cotangent of log S from all steps shares the factor
e^S, so that it collapses into one weight W = e^S o (U V^T) of rank at most the number of steps, and the gradient in the
embeddings is a single pass over the pairs, however many steps there were.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from contraport.engine.custom_op import Explicit
from contraport.engine.geometry import Geometry
from contraport.engine.passes import Passes, Term

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


class Relaxation(NamedTuple):
    """How far half steps may stay from their marginals: p = r + clamp(damping (log a - r - log sum), bound).

    Attributes:
        dampings: one factor in (0, 1] per step, (steps,); None is 1 throughout. It is what a Kullback-Leibler price of
            the marginal leaves.
        bounds: how far each step may go from its reference, (steps,), positive; None is as far as it likes. It is what
            a price of the total variation leaves.
        references: where a step starts from, r: (N,) for rows and (M,) for columns; None is zero.
    """

    dampings: Tensor | None = None
    bounds: Tensor | None = None
    references: tuple[Tensor, Tensor] | None = None

    def potential(self, k: int, axis: Axis, log_marginal: Tensor, log_sum: Tensor) -> Tensor:
        """Return the potential of step k."""
        step = log_marginal - log_sum if self.references is None else self._step(axis, log_marginal, log_sum)
        step = step if self.dampings is None else self.dampings[k] * step
        step = step if self.bounds is None else torch.clamp(step, -self.bounds[k], self.bounds[k])
        return step if self.references is None else self.references[axis == "columns"] + step

    def slope(self, k: int, axis: Axis, log_marginal: Tensor, log_sum: Tensor) -> Tensor:
        """Return the slope of the potential of step k in log a less the log-sum, of each row or column."""
        slope = torch.ones_like(log_sum) if self.dampings is None else self.dampings[k].expand_as(log_sum)
        if self.bounds is None:
            return slope
        return slope.masked_fill(self._beyond(k, self._step(axis, log_marginal, log_sum)), 0)

    def adjoint(
        self,
        k: int,
        axis: Axis,
        log_marginals: tuple[Tensor, Tensor],
        log_sum: Tensor,
        cotangent: Tensor,
        outer: Sequence[Tensor | None],
    ) -> Tensor:
        """Take the cotangent of the potential of step k to that of log a less the log-sum.

        What arrives at log a, log b, the dampings, the bounds and the references is added to `outer`, where wanted.
        """
        side = int(axis == "columns")
        d_log_marginal, d_dampings, d_bounds, d_reference = outer[side], outer[2], outer[3], outer[4 + side]
        if d_reference is not None:
            d_reference += cotangent
        if self.bounds is not None or d_dampings is not None:
            step = self._step(axis, log_marginals[side], log_sum)
            if self.bounds is not None:
                beyond = self._beyond(k, step)
                if d_bounds is not None:
                    d_bounds[k] = (cotangent * step.sign() * beyond).sum()
                cotangent = cotangent.masked_fill(beyond, 0)
            if d_dampings is not None:
                d_dampings[k] = (cotangent * step).sum()
        cotangent = cotangent if self.dampings is None else self.dampings[k] * cotangent
        if d_log_marginal is not None:
            d_log_marginal += cotangent
        if d_reference is not None:
            d_reference -= cotangent
        return cotangent

    def _step(self, axis: Axis, log_marginal: Tensor, log_sum: Tensor) -> Tensor:
        """Return log a - r - log sum."""
        return (
            log_marginal - log_sum
            if self.references is None
            else (log_marginal - self.references[axis == "columns"] - log_sum)
        )

    def _beyond(self, k: int, step: Tensor) -> Tensor:
        """Return where a step would go further than its bound."""
        assert self.bounds is not None
        return (step if self.dampings is None else self.dampings[k] * step).abs() > self.bounds[k]

    def tensors(self) -> tuple[Tensor | None, ...]:
        """Return the dampings, the bounds and both references."""
        return self.dampings, self.bounds, *(self.references or (None, None))


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
        self, geometry: Geometry, log_marginals: tuple[Tensor, Tensor], slack: Relaxation, given: Sequence[Tensor]
    ) -> list[Tensor]:
        """Return the potential of each step by the definition, for autograd to differentiate."""
        s, empty = geometry.dense(), None if geometry.full else self.empty
        # MODERATE is for factors of which two meet in a product; here is one.
        moderate = geometry.log_kernel.reach <= 2 * MODERATE.get(s.dtype, 0.0)
        kernel = s.exp() if moderate and self.steps[0].source is None else None
        potentials = list(given)
        for k, step in enumerate(self.steps):
            side = int(step.axis == "columns")
            if step.source is None and kernel is not None:
                log_sum = _log(kernel.sum(1 - side), empty)
            else:
                oriented = s.T if side else s
                log_sum = log_sum_exp(oriented if step.source is None else oriented + potentials[step.source], empty)
            potentials.append(slack.potential(k, step.axis, log_marginals[side], log_sum))
        return potentials[len(given) :]


LOG2E = math.log2(math.e)

MODERATE = {torch.float32: 36.0, torch.float64: 300.0}
"""Exponents up to this are taken as they are: the product of two such factors, summed over a row, stays in range."""


def log_sum_exp(values: Tensor, empty: float | None) -> Tensor:
    """Return the log-sum-exp of each row, (N, M) to (N,), by powers of two, which take a third of the time of exp.

    Args:
        values: (N, M).
        empty: what it is, without gradient, where all values of a row are minus infinity; None if that is known not to
            be.
    """
    maximum = values.detach().amax(1)
    if empty is not None:
        maximum = maximum.masked_fill(maximum == -torch.inf, 0)
    total = (values - maximum[:, None]).mul_(LOG2E).exp2_().sum(1)
    return _log(total, empty, maximum)


def _log(total: Tensor, empty: float | None, shift: Tensor | None = None) -> Tensor:
    """Return log total + shift, and `empty` where the total is 0, if it can be."""
    if empty is None:
        return total.log() if shift is None else total.log() + shift
    weightless = total == 0
    log_total = total.masked_fill(weightless, 1).log()
    return (log_total if shift is None else log_total + shift).masked_fill(weightless, empty)


@dataclass(frozen=True, eq=False)
class Scale(Explicit):
    """Half steps by passes, with the collapsed gradient; see `contraport.engine.scale`."""

    chain: HalfSteps
    log_marginals: tuple[Tensor, Tensor]
    slack: Relaxation
    given: tuple[Tensor, ...]

    def definition(self) -> list[Tensor]:
        return self.chain.written_down(self.geometry, self.log_marginals, self.slack, self.given)

    @property
    def counts(self) -> tuple[int, int]:
        """The number of outputs, a potential and a log-sum for each step, and of the potentials."""
        return 2 * len(self.chain.steps), len(self.chain.steps)

    def run(self, passes: Passes) -> list[Tensor]:
        chain, slack = self.chain, self.slack
        steps, zeros = chain.steps, self._zeros()
        potentials, log_sums = list(self.given), []
        for batch in chain.batches():
            read = {steps[k].axis: _read(potentials, steps[k], zeros) for k in batch}
            by_row, by_column = passes.log_sum_exp(read.get("rows"), read.get("columns"))
            for k in batch:
                side = int(steps[k].axis == "columns")
                log_sum = (by_row, by_column)[side]
                assert log_sum is not None
                filled = log_sum
                if not self.geometry.full:
                    weightless = log_sum == -torch.inf
                    filled, log_sum = log_sum.masked_fill(weightless, chain.empty), log_sum.masked_fill(weightless, 0)
                log_sums.append(log_sum)
                potentials.append(slack.potential(k, steps[k].axis, self.log_marginals[side], filled))
        return [*potentials[chain.given :], *log_sums]

    def empty(self) -> list[Tensor]:
        sides = [self.log_marginals[step.axis == "columns"] for step in self.chain.steps]
        return [side.new_empty(side.shape) for side in 2 * sides]

    def sources(self) -> tuple[Tensor | None, ...]:
        return *self.log_marginals, *self.slack.tensors(), *self.given, *self.geometry.log_kernel.inputs

    def gradient(
        self, passes: Passes, outputs: Sequence[Tensor], seeds: Sequence[Tensor | None], requires: Sequence[bool]
    ) -> list[Tensor | None]:
        steps, given, slack, log_marginals = self.chain.steps, self.chain.given, self.slack, self.log_marginals
        potentials, log_sums, zeros = [*self.given, *outputs[: len(steps)]], outputs[len(steps) :], self._zeros()
        cotangents: list[Tensor | None] = [*(None for _ in range(given)), *seeds]
        outside = (*log_marginals, *slack.tensors())
        outer = [
            torch.zeros_like(value) if required and value is not None else None
            for value, required in zip(outside, requires, strict=False)
        ]
        requires_given, requires_inputs = requires[len(outer) : len(outer) + given], requires[len(outer) + given :]
        terms: list[Term] = []
        for batch in reversed(list(self.chain.batches())):
            arriving: list[tuple[int, Term]] = []
            for k in batch:
                step, cotangent = steps[k], cotangents[given + k]
                if cotangent is None:
                    continue
                cotangent = slack.adjoint(k, step.axis, log_marginals, log_sums[k], cotangent, outer)
                # The weights of this step's softmax are exp(S + A + B), A (or B) minus its log-sum, B (or A) what it
                # read.
                exponents = -log_sums[k], _read(potentials, step, zeros)
                log_rows, log_columns = exponents if step.axis == "rows" else exponents[::-1]
                term = Term(log_rows, log_columns, step.axis, -cotangent)
                terms.append(term)
                if step.source is not None and (step.source >= given or requires_given[step.source]):
                    arriving.append((step.source, term))
            sums = passes.weighted_sum([term for _, term in arriving]) if arriving else []
            for (source, _), total in zip(arriving, sums, strict=True):
                already = cotangents[source]
                cotangents[source] = total if already is None else already + total
        some = terms and any(requires_inputs)
        inputs = passes.gradient(terms, requires_inputs) if some else [None] * len(requires_inputs)
        return [*outer, *cotangents[:given], *inputs]

    def _zeros(self) -> dict[str, Tensor]:
        log_a, log_b = self.log_marginals
        return {"rows": torch.zeros_like(log_a), "columns": torch.zeros_like(log_b)}


def _read(potentials: Sequence[Tensor], step: Step, zeros: dict[str, Tensor]) -> Tensor:
    """Return the potential that a step reads, on the axis that it sums over."""
    if step.source is not None:
        return potentials[step.source]
    return zeros["columns" if step.axis == "rows" else "rows"]
