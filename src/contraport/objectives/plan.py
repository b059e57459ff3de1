"""A plan: the plan that came out, as potentials over the compared pairs, and never as a matrix unless asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import OTHER, Axis, Doubled, Geometry, LogKernel, TimesCost, held_sums, log_sums
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan P_ij = exp(log K_ij + f_i + g_j), differentiable in the embeddings.

    Attributes:
        geometry: the compared pairs, (N, M).
        f: potential of the rows, (N,).
        g: potential of the columns, (M,).
        known_log_row_mass: log sum_j P_ij, (N,), where finding the plan has left it known.
        known_log_column_mass: log sum_i P_ij, (M,), likewise.
        zero: the axes whose potential is zero.
        balanced: whether the total mass is 1 by construction.
    """

    geometry: Geometry
    f: Tensor
    g: Tensor
    known_log_row_mass: Tensor | None = None
    known_log_column_mass: Tensor | None = None
    zero: tuple[Axis, ...] = ()
    balanced: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.geometry.shape

    @property
    def T(self) -> Plan:
        """The same plan with rows and columns exchanged."""
        masses = self.known_log_column_mass, self.known_log_row_mass
        return Plan(self.geometry.T, self.g, self.f, *masses, tuple(OTHER[axis] for axis in self.zero), self.balanced)

    def log_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return log P at the given entries: index tensors (k,) to a tensor (k,)."""
        return self.geometry.at(rows, columns) + self.f[rows] + self.g[columns]

    def log_row_mass(self) -> Tensor:
        """Return log sum_j P_ij, (N,); one pass over the pairs unless known."""
        if self.known_log_row_mass is not None:
            return self.known_log_row_mass
        return self.f + log_sums(self.geometry, "rows", self.g)

    def log_column_mass(self) -> Tensor:
        """Return log sum_i P_ij, (M,); one pass over the pairs unless known."""
        if self.known_log_column_mass is not None:
            return self.known_log_column_mass
        return self.g + log_sums(self.geometry, "columns", self.f)

    def mass(self) -> Tensor:
        """Return the total mass, from the marginal that is known where one is."""
        known = self.known_log_marginal
        return (self.log_row_mass() if known is None else known).exp().sum()

    @property
    def known_log_marginal(self) -> Tensor | None:
        """The logarithm of the mass of each row, or else of each column, where finding the plan has left it known."""
        return self.known_log_row_mass if self.known_log_row_mass is not None else self.known_log_column_mass

    def row_inner_log(self, target: TargetPlan) -> Tensor:
        """Return sum_j target_ij log P_ij, (N,), without a pass over the pairs; masks aside, where no target has
        mass.
        """
        f, g = (None if axis in self.zero else v for axis, v in (("rows", self.f), ("columns", self.g)))
        return target.row_log(self.geometry.log_kernel, f, g)

    def row_square_mass(self) -> Tensor:
        """Return sum_j P_ij^2, (N,); one pass over the pairs."""
        link = self.geometry.log_kernel.link
        squared = self.geometry.with_link(None, scale=2.0) if link is None else self.geometry.with_link(Doubled(link))
        return torch.exp(2 * self.f + log_sums(squared, "rows", 2 * self.g))

    @property
    def cost_kernel(self) -> LogKernel:
        """The log-kernel without its link, T = -C / unit."""
        return self.geometry.log_kernel.with_link(None)

    def row_cost(self, *, held: bool) -> Tensor:
        """Return sum_j P_ij C_ij, (N,), for a cost that is a distance; one pass over the pairs.

        Args:
            held: whether P is held fixed, so that the gradient is that of the cost alone.
        """
        unit = self.cost_kernel.unit
        if held:
            return -unit * held_sums(self.geometry, self.f, self.g)
        weighted = self.geometry.with_link(TimesCost(self.geometry.log_kernel.link))
        return unit * torch.exp(self.f + log_sums(weighted, "rows", self.g))

    def restrict(self, rows: slice) -> Plan:
        """Return the plan on some of its rows."""
        return Plan(self.geometry.restrict(rows), self.f[rows], self.g)

    def log_dense(self) -> Tensor:
        """Return log P as an (N, M) tensor."""
        return self.geometry.dense() + self.f[:, None] + self.g

    def dense(self) -> Tensor:
        """Return P as an (N, M) tensor, to look at."""
        return self.log_dense().exp()
