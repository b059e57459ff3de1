"""Dense backend: the whole (N, M) matrix with plain autograd; the reference for all other backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine.pair_passes import BothSums, PairPasses, WeightTerm

ALL = slice(None)


class DensePairPasses(PairPasses):
    """Passes on the whole (N, M) matrix: the reference, and the fastest for small batches.

    Every process does all the work.
    """

    description: ClassVar[str] = "one (N, M) matrix and plain autograd: the oracle, and the fastest for small batches"
    by_autograd: ClassVar[bool] = True

    def precompute(self) -> None:
        self.s = self.geometry.dense()

    def log_sum_exp(self, q: Tensor | None, p: Tensor | None) -> BothSums:
        by_row = None if q is None else (self.s + q).logsumexp(1)
        by_column = None if p is None else (self.s + p[:, None]).logsumexp(0)
        return by_row, by_column

    def weighted_sum(self, terms: Sequence[WeightTerm]) -> list[Tensor]:
        return [self._weight(term).sum(0 if term.axis == "rows" else 1) for term in terms]

    def gradient(
        self, terms: Sequence[WeightTerm], needs_grad: Sequence[bool], *, without_link: bool = False
    ) -> list[Tensor | None]:
        log_kernel = self.log_kernel
        weight = torch.stack([self._weight(term) for term in terms]).sum(0)
        if log_kernel.link is not None and not without_link:
            weight = weight * log_kernel.link.derivative(log_kernel.tile(ALL, ALL)[1])
        gradients = [torch.zeros_like(v) if n else None for v, n in zip(log_kernel.inputs, needs_grad, strict=True)]
        log_kernel.accumulate_gradient(ALL, ALL, weight, gradients)
        return gradients

    def transport_sums(self, f: Tensor, g: Tensor) -> Tensor:
        plan = torch.exp(self.s + f[:, None] + g)
        return (plan * self.log_kernel.with_link(None).dense()).sum(1)

    def _weight(self, term: WeightTerm) -> Tensor:
        factor = term.factor[:, None] if term.axis == "rows" else term.factor
        return torch.exp(self.s + term.row_exponents[:, None] + term.column_exponents) * factor
