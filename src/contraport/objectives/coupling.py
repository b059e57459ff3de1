"""A coupling: the plan that came out, as potentials over the compared pairs, and never as a matrix unless asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import Geometry, log_sums
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False)
class Coupling:
    """An entropic plan, P_ij = exp(log K_ij + f_i + g_j), differentiable in the embeddings.

    Attributes:
        geometry: the compared pairs, (N, M).
        f: potential of the rows, (N,).
        g: potential of the columns, (M,).
        known_log_row_mass: log sum_j P_ij, (N,), where the last half step has left it known.
        known_log_column_mass: log sum_i P_ij, (M,), likewise.
    """

    geometry: Geometry
    f: Tensor
    g: Tensor
    known_log_row_mass: Tensor | None = None
    known_log_column_mass: Tensor | None = None

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
        known = self.known_log_row_mass if self.known_log_row_mass is not None else self.known_log_column_mass
        return (self.log_row_mass() if known is None else known).exp().sum()

    def inner_log(self, target: TargetPlan) -> Tensor:
        """Return sum_ij target_ij log P_ij, without a pass over the pairs."""
        a, b = target.marginals()
        return target.inner(self.geometry) + a @ self.f + b @ self.g

    def dense(self) -> Tensor:
        """Return P as an (N, M) tensor, to look at."""
        return torch.exp(self.geometry.dense() + self.f[:, None] + self.g)
