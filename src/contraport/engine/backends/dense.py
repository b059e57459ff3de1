"""One (N, M) matrix: the definitions as they are written, and plain autograd."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine.passes import Passes, Term

WHOLE = slice(None)


class Dense(Passes):
    """The oracle, and the fastest for small batches; every process works on all pairs."""

    summary: ClassVar[str] = "one (N, M) matrix and plain autograd: the oracle, and the fastest for small batches"
    by_autograd: ClassVar[bool] = True

    @cached_property
    def _s(self) -> Tensor:
        return self.geometry.dense()

    def log_sum_exp(self, over_columns: Tensor | None, over_rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        by_row = None if over_columns is None else (self._s + over_columns).logsumexp(1)
        by_column = None if over_rows is None else (self._s + over_rows[:, None]).logsumexp(0)
        return by_row, by_column

    def weighted_sum(self, terms: Sequence[Term]) -> list[Tensor]:
        return [self._weight(term).sum(0 if term.axis == "rows" else 1) for term in terms]

    def gradient(self, terms: Sequence[Term], wanted: Sequence[bool], *, held: bool = False) -> list[Tensor | None]:
        log_kernel = self.log_kernel
        weight = torch.stack([self._weight(term) for term in terms]).sum(0)
        if log_kernel.link is not None and not held:
            weight = weight * log_kernel.link.derivative(log_kernel.tile(WHOLE, WHOLE)[1])
        gradients = [torch.zeros_like(v) if want else None for v, want in zip(log_kernel.inputs, wanted, strict=True)]
        log_kernel.pull(WHOLE, WHOLE, weight, gradients)
        return gradients

    def sums_of_t(self, f: Tensor, g: Tensor) -> Tensor:
        plan = torch.exp(self._s + f[:, None] + g)
        return (plan * self.log_kernel.with_link(None).dense()).sum(1)

    def _weight(self, term: Term) -> Tensor:
        along = term.weight[:, None] if term.axis == "rows" else term.weight
        return torch.exp(self._s + term.log_rows[:, None] + term.log_columns) * along
