"""Targets: which plan we want.

A target (`Pairs`, `Matrix`, ...) is a rule; on the block of a batch it becomes a target plan, which is sparse,
structured or given as a matrix, has total mass 1 and never enters a pass over the pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from contraport.engine import Geometry
from contraport.errors import check
from contraport.objectives.layouts import Block

Attributes = Mapping[str, Tensor]
"""What is known of the items of a batch: ``labels``, ``domains``, ..., each (n, ...)."""


class TargetPlan(Protocol):
    """The plan that is wanted on one block: an (N, M) matrix of nonnegative numbers, in whatever form is cheap."""

    def apply(self, y: Tensor) -> Tensor:
        """Return the plan times y: (M, d) to (N, d)."""

    def apply_t(self, x: Tensor) -> Tensor:
        """Return the transposed plan times x: (N, d) to (M, d)."""

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Return the mass of the rows, (N,), and of the columns, (M,)."""

    def entropy(self) -> Tensor:
        """Return -sum p log p."""

    def inner(self, geometry: Geometry) -> Tensor:
        """Return sum_ij p_ij log K_ij, minus infinity where it puts mass on a masked pair."""

    def dense(self) -> Tensor:
        """Return it as an (N, M) tensor."""

    @property
    def T(self) -> TargetPlan:
        """The same plan with rows and columns exchanged."""


class Target(Protocol):
    """A rule that says which plan is wanted on a block, from what is known of the items."""

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of total mass 1 (0 where the block has no positives)."""


@dataclass(frozen=True, eq=False)
class SparsePlan:
    """A target plan by its nonzero entries: p at (rows[k], columns[k]) is values[k]."""

    rows: Tensor
    columns: Tensor
    values: Tensor
    shape: tuple[int, int]

    def apply(self, y: Tensor) -> Tensor:
        out = y.new_zeros(self.shape[0], *y.shape[1:])
        return out.index_add(0, self.rows, _times(self.values, y[self.columns]))

    def apply_t(self, x: Tensor) -> Tensor:
        return self.T.apply(x)

    def marginals(self) -> tuple[Tensor, Tensor]:
        n, m = self.shape
        ones = self.values.new_ones(max(n, m))
        return self.apply(ones[:m]), self.apply_t(ones[:n])

    def entropy(self) -> Tensor:
        return -torch.xlogy(self.values, self.values).sum()

    def inner(self, geometry: Geometry) -> Tensor:
        present = self.values > 0
        rows, columns = self.rows[present], self.columns[present]
        return (self.values[present] * geometry.at(rows, columns)).sum()

    def dense(self) -> Tensor:
        return self.values.new_zeros(self.shape).index_put((self.rows, self.columns), self.values, accumulate=True)

    @property
    def T(self) -> SparsePlan:
        return SparsePlan(self.columns, self.rows, self.values, self.shape[::-1])


@dataclass(frozen=True, eq=False)
class DensePlan:
    """A target plan as a matrix, (N, M)."""

    matrix: Tensor

    def apply(self, y: Tensor) -> Tensor:
        return self.matrix @ y

    def apply_t(self, x: Tensor) -> Tensor:
        return self.matrix.T @ x

    def marginals(self) -> tuple[Tensor, Tensor]:
        return self.matrix.sum(1), self.matrix.sum(0)

    def entropy(self) -> Tensor:
        return -torch.xlogy(self.matrix, self.matrix).sum()

    def inner(self, geometry: Geometry) -> Tensor:
        return geometry.log_kernel.inner(self)

    def dense(self) -> Tensor:
        return self.matrix

    @property
    def T(self) -> DensePlan:
        return DensePlan(self.matrix.T)


@dataclass(frozen=True)
class Pairs:
    """Each row is wanted at its positives: mass 1/N a row, in equal parts, times the importance of its item.

    ``weights`` in the call, (n,) and nonnegative, gives that importance; it is scaled to mean 1.

    >>> import torch
    >>> from contraport.objectives.layouts import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Pairs()(block, {}).dense()
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    def __call__(self, block: Block, attributes: Attributes) -> SparsePlan:
        """Return the target plan of a block."""
        rows, columns = block.positives
        per_row = torch.bincount(rows, minlength=block.shape[0])
        values = block.x.new_ones(len(rows), dtype=torch.promote_types(block.x.dtype, torch.float32))
        values = values / (per_row[rows] * block.shape[0])
        weights = attributes.get("weights")
        if weights is not None:
            weights = weights.to(values)
            values = values * (weights / weights.mean())[block.row_items[rows]]
        return SparsePlan(rows, columns, values, block.shape)


@dataclass(frozen=True, eq=False)
class Matrix:
    """Any plan that is wanted, given entry by entry.

    Args:
        matrix: proportional to the wanted plan, (N, M) of the layout, nonnegative; it is scaled to total mass 1. In the
            joint layout (2n, 2n), view 0 before view 1, with nothing on the diagonal, where the self pairs are.

    Raises:
        UsageError: an entry is negative or not finite, all are zero, or, on a block, the shape differs or there is mass
            on a pair that the layout leaves out.

    >>> import torch
    >>> from contraport.objectives.layouts import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Matrix(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))(block, {}).dense()
    tensor([[0.3750, 0.1250],
            [0.1250, 0.3750]])
    """

    matrix: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        matrix = self.matrix
        check(isinstance(matrix, Tensor) and matrix.ndim == 2, "target: expected a tensor with two dimensions.")
        good = bool(torch.isfinite(matrix).all() and (matrix >= 0).all() and matrix.sum() > 0)
        check(good, "target: expected nonnegative finite numbers that are not all zero.")

    def __call__(self, block: Block, attributes: Attributes) -> DensePlan:
        """Return the target plan of a block."""
        shape = tuple(self.matrix.shape)
        check(shape == block.shape, f"target: expected shape {block.shape}, the layout's pairs, got {shape}.")
        if block.x is block.y:
            check(
                not self.matrix.diagonal().any(), "target: puts mass on self pairs (its diagonal), which are left out."
            )
        matrix = self.matrix.to(block.x.device, torch.promote_types(block.x.dtype, torch.float32))
        return DensePlan(matrix / matrix.sum())


def _times(weights: Tensor, rows: Tensor) -> Tensor:
    return weights.view(-1, *[1] * (rows.ndim - 1)) * rows
