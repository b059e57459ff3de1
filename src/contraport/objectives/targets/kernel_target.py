"""Target plan that is a kernel in another space, evaluated a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import (
    Geometry,
    constant_vector,
    is_in_torch_func,
    log_of_size,
    log_sums,
    map_row_blocks,
    without_autocast,
)
from contraport.errors import check
from contraport.objectives.targets.target import TargetPlan


@dataclass(frozen=True, eq=False)
class KernelTarget(TargetPlan):
    """Target plan given by a kernel in another space, p_ij = exp(S_ij + f_i + g_j), without gradient.

    S is the log of the kernel.

    Sums are computed for some rows at a time, and again in backward: no (N, M) matrix is stored.

    Attributes:
        geometry: Compared pairs under the log-kernel S.
        f: Log potential of each row, (N,); minus infinity for rows without mass.
        g: Log potential of each column, (M,).
        cached_row_mass: Mass of each row, (N,), if known; else None.
        num_appended: Number of columns without mass that follow those of the kernel.
    """

    geometry: Geometry
    f: Tensor
    g: Tensor
    cached_row_mass: Tensor | None = None
    num_appended: int = 0

    @classmethod
    def from_row_normalized(cls, geometry: Geometry) -> KernelTarget:
        """Build the target plan from a kernel with every row scaled to mass 1/N; rows without compared pairs stay 0."""
        (n, m), like = geometry.shape, geometry.log_kernel.inputs[0]
        zeros = constant_vector(m, 0.0, like)
        with torch.no_grad():
            log_row_sums = log_sums(geometry, "rows", zeros)
        # Rows without compared pairs have log sum -inf: their potential must not become +inf.
        nonempty = log_row_sums > -torch.inf
        f = torch.where(nonempty, -log_row_sums - log_of_size(n, like), -torch.inf)
        return cls(geometry, f, zeros, nonempty.to(f) / n)

    def _map_rows(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return a function of the rows of the plan, computed a few rows at a time."""

        def evaluate(rows: slice) -> Tensor:
            return function(torch.exp(self.geometry.take_rows(rows).dense() + self.f[rows, None] + self.g))

        with torch.no_grad(), without_autocast(self.f):
            return torch.cat(map_row_blocks(evaluate, self.geometry.shape))

    def apply(self, y: Tensor) -> Tensor:
        y = y[: self.geometry.shape[1]]
        if is_in_torch_func():  # an autograd.Function without a vmap rule cannot be transformed
            return self._map_rows(lambda plan: plan).to(y.dtype) @ y
        product: Tensor = _KernelProduct.apply(self, y)
        return product

    def row_mass(self) -> Tensor:
        if self.cached_row_mass is not None:
            return self.cached_row_mass
        return self._map_rows(lambda plan: plan.sum(1))

    def row_negative_entropy(self) -> Tensor:
        return self._map_rows(lambda plan: torch.xlogy(plan, plan).sum(1))

    def row_square_mass(self) -> Tensor:
        return self._map_rows(lambda plan: plan.square().sum(1))

    def dense(self) -> Tensor:
        return F.pad(self._map_rows(lambda plan: plan), (0, self.num_appended))

    @property
    def T(self) -> KernelTarget:
        """Transposed target plan, with rows and columns exchanged."""
        check(self.num_appended == 0, "target: cannot be transposed with appended columns.", "appended_columns")
        return KernelTarget(self.geometry.T, self.g, self.f)

    def take_rows(self, rows: slice) -> KernelTarget:
        mass = None if self.cached_row_mass is None else self.cached_row_mass[rows]
        return replace(self, geometry=self.geometry.take_rows(rows), f=self.f[rows], cached_row_mass=mass)

    def scale_rows(self, factors: Tensor) -> KernelTarget:
        mass = None if self.cached_row_mass is None else factors * self.cached_row_mass
        return replace(self, f=self.f + factors.to(self.f).log(), cached_row_mass=mass)

    def append_columns(self, columns: int) -> KernelTarget:
        return replace(self, num_appended=self.num_appended + columns)


class _KernelProduct(torch.autograd.Function):
    """Product of the plan with a matrix; its backward is the product with the transposed plan."""

    @staticmethod
    def forward(ctx: Any, target: KernelTarget, y: Tensor) -> Tensor:
        ctx.target = target
        return target._map_rows(lambda plan: plan.to(y.dtype) @ y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _KernelProduct.apply(replace(ctx.target, num_appended=0).T, gradient)
