"""A target that is a kernel in another space, given by potentials: no matrix of all pairs, but passes of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import (
    Geometry,
    constant,
    is_in_torch_func,
    log_size,
    log_sums,
    map_row_blocks,
    without_autocast,
)
from contraport.errors import check
from contraport.objectives.targets.target import TargetPlan


@dataclass(frozen=True, eq=False)
class KernelTarget(TargetPlan):
    """A target plan p_ij = exp(S_ij + f_i + g_j), S the log of a kernel; held fixed.

    What is asked of it is computed some rows at a time, and again for a gradient.

    Attributes:
        geometry: the pairs under S.
        f: (N,); minus infinity on rows that want nothing.
        g: (M,).
        cached_row_mass: the mass of the rows, (N,), where it is known.
        further: how many columns without mass stand beside these.
    """

    geometry: Geometry
    f: Tensor
    g: Tensor
    cached_row_mass: Tensor | None = None
    further: int = 0

    @classmethod
    def by_rows(cls, geometry: Geometry) -> KernelTarget:
        """Return the kernel with every row scaled to mass 1/N; a row with nothing to compare wants nothing."""
        (n, m), like = geometry.shape, geometry.log_kernel.inputs[0]
        zeros = constant(m, 0.0, like)
        with torch.no_grad():
            log_sum = log_sums(geometry, "rows", zeros)
        wants = log_sum > -torch.inf
        f = torch.where(wants, -log_sum - log_size(n, like), -torch.inf)
        return cls(geometry, f, zeros, wants.to(f) / n)

    @property
    def _columns(self) -> int:
        return self.geometry.shape[1]

    def _of_rows(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Return what a function makes of the plan, some rows at a time."""

        def of(rows: slice) -> Tensor:
            return function(torch.exp(self.geometry.restrict(rows).dense() + self.f[rows, None] + self.g))

        with torch.no_grad(), without_autocast(self.f):
            return torch.cat(map_row_blocks(of, self.geometry.shape))

    def apply(self, y: Tensor) -> Tensor:
        y = y[: self._columns]
        if is_in_torch_func():
            return self._of_rows(lambda plan: plan).to(y.dtype) @ y
        applied: Tensor = _Applied.apply(self, y)
        return applied

    def row_mass(self) -> Tensor:
        if self.cached_row_mass is not None:
            return self.cached_row_mass
        return self._of_rows(lambda plan: plan.sum(1))

    def row_entropy(self) -> Tensor:
        return self._of_rows(lambda plan: -torch.xlogy(plan, plan).sum(1))

    def row_square_mass(self) -> Tensor:
        return self._of_rows(lambda plan: plan.square().sum(1))

    def dense(self) -> Tensor:
        return F.pad(self._of_rows(lambda plan: plan), (0, self.further))

    @property
    def T(self) -> KernelTarget:
        check(self.further == 0, "target: a plan with further columns beside it has no mirror.")
        return KernelTarget(self.geometry.T, self.g, self.f)

    def restrict(self, rows: slice) -> KernelTarget:
        mass = None if self.cached_row_mass is None else self.cached_row_mass[rows]
        return replace(self, geometry=self.geometry.restrict(rows), f=self.f[rows], cached_row_mass=mass)

    def times(self, factors: Tensor) -> KernelTarget:
        mass = None if self.cached_row_mass is None else factors * self.cached_row_mass
        return replace(self, f=self.f + factors.to(self.f).log(), cached_row_mass=mass)

    def beside(self, columns: int) -> KernelTarget:
        return replace(self, further=self.further + columns)


class _Applied(torch.autograd.Function):
    """The plan times a matrix; its adjoint is the mirror of the plan times one."""

    @staticmethod
    def forward(ctx: Any, target: KernelTarget, y: Tensor) -> Tensor:
        ctx.target = target
        return target._of_rows(lambda plan: plan.to(y.dtype) @ y)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, _Applied.apply(replace(ctx.target, further=0).T, gradient)
