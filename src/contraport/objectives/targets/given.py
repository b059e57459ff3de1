"""A target given entry by entry."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from contraport.distributed import gather
from contraport.errors import check
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target import Attributes, Target, precision_of
from contraport.objectives.targets.target_plan import DenseTarget, SparseTarget, TargetPlan


@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Target):
    """Any plan that is wanted, given entry by entry.

    Args:
        matrix: proportional to the wanted plan, (N, M) of the layout, nonnegative, dense or `torch.sparse`; it is
            scaled to total mass 1. In the joint layout it is (2n, 2n), view 0 before view 1.

    Raises:
        UsageError: an entry is negative or not finite, all are zero, or, on a block, the shape differs or there is mass
            on a pair that the layout leaves out.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Matrix(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))(block, {}).dense()
    tensor([[0.3750, 0.1250],
            [0.1250, 0.3750]])
    """

    matrix: Tensor = field(repr=False)

    @property
    def complete(self) -> bool:
        """Whether the plan has all its mass: it does, however it is spread over the rows."""
        return True

    def __post_init__(self) -> None:
        matrix = self.matrix
        check(isinstance(matrix, Tensor) and matrix.ndim == 2, "target: expected a tensor with two dimensions.")
        values = matrix.to_sparse_coo().coalesce().values() if _is_sparse(matrix) else matrix
        good = bool(torch.isfinite(values).all() and (values >= 0).all() and values.sum() > 0)
        check(good, "target: expected nonnegative finite numbers that are not all zero.")

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of a block."""
        shape = tuple(self.matrix.shape)
        check(shape == block.shape, f"target: expected shape {block.shape}, the layout's pairs, got {shape}.")
        matrix = self.matrix.to(block.x.device, precision_of(block))
        if _is_sparse(matrix):
            matrix = matrix.to_sparse_coo().coalesce()
            rows, columns = matrix.indices()
            _check_compared([mask.at(rows, columns) & (matrix.values() > 0) for mask in block.pattern.masks])
            values = matrix.values()
            return SparseTarget(rows, columns, values / values.sum(), block.shape)
        _check_compared([mask.tile(slice(None), slice(None)) & (matrix > 0) for mask in block.pattern.masks])
        return DenseTarget(matrix / matrix.sum())

    def mirrored(self) -> Matrix:
        return Matrix(self.matrix.T)

    def gathered(self) -> Matrix:
        """Return the rule with the rows of all processes."""
        return Matrix(gather(self.matrix.to_dense() if _is_sparse(self.matrix) else self.matrix))


def _check_compared(refused: list[Tensor]) -> None:
    good = not any(bool(pairs.any()) for pairs in refused)
    check(good, "target: puts mass on pairs that are left out (self pairs, say, or items with equal ids).")


def _is_sparse(matrix: Tensor) -> bool:
    return matrix.layout != torch.strided
