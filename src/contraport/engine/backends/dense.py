"""One (N, M) matrix: the definitions as they are written, and plain autograd."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine.backends.backend import Backend, held_sums_written_down
from contraport.engine.half_steps import HalfSteps, Slack
from contraport.engine.passes import Term, differentiably


class Dense(Backend):
    """The oracle, and the fastest for small batches; every process works on all pairs."""

    summary: ClassVar[str] = "one (N, M) matrix and plain autograd: the oracle, and the fastest for small batches"

    def scale(
        self,
        chain: HalfSteps,
        log_marginals: tuple[Tensor, Tensor],
        slack: Slack,
        given: Sequence[Tensor],
    ) -> list[Tensor]:
        return chain.written_down(self.geometry, log_marginals, slack, given)

    def held_sums(self, f: Tensor, g: Tensor) -> Tensor:
        return held_sums_written_down(self.geometry, f, g)

    @cached_property
    def _s(self) -> Tensor:
        with torch.no_grad():
            return self.geometry.dense()

    def log_sum_exp(self, over_columns: Tensor | None, over_rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        by_row = None if over_columns is None else (self._s + over_columns).logsumexp(1)
        by_column = None if over_rows is None else (self._s + over_rows[:, None]).logsumexp(0)
        return by_row, by_column

    def weighted_sum(self, terms: Sequence[Term]) -> list[Tensor]:
        return [self._weight(term).sum(0 if term.axis == "rows" else 1) for term in terms]

    def gradient(self, terms: Sequence[Term], wanted: Sequence[bool], *, held: bool = False) -> list[Tensor | None]:
        def log_kernel(*inputs: Tensor) -> list[Tensor]:
            geometry = self.geometry_on(inputs)
            return [geometry.log_kernel.with_link(None).dense() if held else geometry.dense()]

        weight = torch.stack([self._weight(term) for term in terms]).sum(0)
        return differentiably(log_kernel, self.inputs(), [weight], wanted, again=False)

    def _weight(self, term: Term) -> Tensor:
        along = term.weight[:, None] if term.axis == "rows" else term.weight
        return torch.exp(self._s + term.log_rows[:, None] + term.log_columns) * along
