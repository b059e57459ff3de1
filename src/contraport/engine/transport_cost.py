"""Sums of T under a plan that is held fixed: what a transport cost is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine.custom_op import Explicit
from contraport.engine.passes import Passes, Term


@dataclass(frozen=True, eq=False)
class HeldSums(Explicit):
    """Sums sum_j P_ij T_ij that are linear in T, with P held; see `contraport.engine.transport_cost`."""

    f: Tensor
    g: Tensor

    def definition(self) -> list[Tensor]:
        plan = torch.exp(self.geometry.dense() + self.f[:, None] + self.g).detach()
        return [(plan * self.geometry.log_kernel.with_link(None).dense()).sum(1)]

    @property
    def counts(self) -> tuple[int, int]:
        """One output, which is differentiable."""
        return 1, 1

    def run(self, passes: Passes) -> list[Tensor]:
        return [passes.sums_of_t(self.f, self.g)]

    def empty(self) -> list[Tensor]:
        return [self.f.new_empty(self.f.shape)]

    def sources(self) -> tuple[Tensor | None, ...]:
        return self.geometry.log_kernel.inputs

    def gradient(
        self, passes: Passes, outputs: Sequence[Tensor], seeds: Sequence[Tensor | None], requires: Sequence[bool]
    ) -> list[Tensor | None]:
        (seed,) = seeds
        if seed is None:
            return [None] * len(requires)
        return passes.gradient([Term(self.f, self.g, "rows", seed)], requires, held=True)
