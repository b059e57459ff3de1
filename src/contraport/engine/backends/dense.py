"""Dense backend, on the whole matrix of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from contraport.engine.pair_passes import OptionalSums, PairPasses, WeightTerm


class DensePairPasses(PairPasses):
    """Dense backend on the whole (N, M) matrix, fastest for small batches.

    It is the reference of the others. Every process does all the work.
    """

    description: ClassVar[str] = "one (N, M) matrix and plain autograd: the reference, fastest for small batches"
    uses_plain_autograd: ClassVar[bool] = True

    def prepare_passes(self) -> None:
        self.s = self.geometry.dense()

    def row_column_log_sums(self, column_potential: Tensor | None, row_potential: Tensor | None) -> OptionalSums:
        by_row = None if column_potential is None else (self.s + column_potential).logsumexp(1)
        by_column = None if row_potential is None else (self.s + row_potential[:, None]).logsumexp(0)
        return by_row, by_column

    def weighted_kernel_sums(self, terms: Sequence[WeightTerm]) -> list[Tensor]:
        return [self._dense_weight(term).sum(0 if term.factor_axis == "rows" else 1) for term in terms]

    def input_grads(
        self, terms: Sequence[WeightTerm], needs_grad: Sequence[bool], *, without_link: bool = False
    ) -> list[Tensor | None]:
        log_kernel, whole = self.log_kernel, slice(None)
        weight = torch.stack([self._dense_weight(term) for term in terms]).sum(0)
        if log_kernel.link is not None and not without_link:
            weight = weight * log_kernel.link.derivative(log_kernel.tile_with_link_input(whole, whole)[1])
        gradients = [torch.zeros_like(v) if n else None for v, n in zip(log_kernel.inputs, needs_grad, strict=True)]
        log_kernel.add_tile_gradients(whole, whole, weight, gradients)
        return gradients

    def plan_link_input_row_sums(self, row_potential: Tensor, column_potential: Tensor) -> Tensor:
        plan = torch.exp(self.s + row_potential[:, None] + column_potential)
        return (plan * self.log_kernel.with_link(None).dense()).sum(1)

    def _dense_weight(self, term: WeightTerm) -> Tensor:
        """Return one summand of the pair weights as a dense (N, M) matrix."""
        factor = term.factor[:, None] if term.factor_axis == "rows" else term.factor
        return torch.exp(self.s + term.row_exponents[:, None] + term.column_exponents) * factor
