"""Transport cost operation: sum_j P_ij T_ij with the plan P held fixed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine.custom_op import BackwardArgs, DenseOperation
from contraport.engine.passes import Passes, RankOneTerm


@dataclass(frozen=True, eq=False)
class TransportCostOperation(DenseOperation):
    """sum_j P_ij T_ij, linear in T, with P constant; see `contraport.engine.transport_cost`."""

    f: Tensor
    g: Tensor

    def dense_outputs(self) -> list[Tensor]:
        plan = torch.exp(self.geometry.dense() + self.f[:, None] + self.g).detach()
        return [(plan * self.geometry.log_kernel.with_link(None).dense()).sum(1)]

    @property
    def output_counts(self) -> tuple[int, int]:
        return 1, 1

    def forward(self, passes: Passes) -> list[Tensor]:
        return [passes.transport_sums(self.f, self.g)]

    def empty_outputs(self) -> list[Tensor]:
        return [self.f.new_empty(self.f.shape)]

    def variables(self) -> tuple[Tensor | None, ...]:
        return self.geometry.log_kernel.inputs

    def backward(self, passes: Passes, args: BackwardArgs) -> list[Tensor | None]:
        (cotangent,) = args.grad_outputs
        if cotangent is None:
            return [None] * len(args.needs_grad)
        return passes.gradient([RankOneTerm(self.f, self.g, "rows", cotangent)], args.needs_grad, without_link=True)
