"""Targets from another space in which the items are known: the input's, or a teacher's."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from contraport.distributed import gather
from contraport.engine import Geometry, Gibbs, Kernel
from contraport.errors import check
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target import Attributes, Target, precision_of
from contraport.objectives.targets.target_plan import DenseTarget, SparseTarget


@dataclass(frozen=True, eq=False, repr=False)
class Soft(Target):
    """Each row is wanted where another space finds it alike: the row-normalised kernel of given features.

    Args:
        features: the batch in that space (the input's, or a teacher's), one tensor (n, k) for all views or one per
        view.
        kernel: how alike two items are there.

    Raises:
        UsageError: on a block, the features are not one per item.

    Source: the target of stochastic neighbour embedding, Hinton and Roweis (2002); with a teacher, relational
    distillation.
    """

    features: Tensor | tuple[Tensor, ...] = field(repr=False)
    kernel: Kernel = field(default_factory=lambda: Gibbs("cosine", 0.1))

    def __call__(self, block: Block, attributes: Attributes) -> DenseTarget:
        """Return the target plan of a block."""
        with torch.no_grad():
            geometry = Geometry(self.kernel(*_feature_sides(self.features, block)), block.pattern.masks)
            wanted = geometry.dense().softmax(1).nan_to_num(0)  # a row with nothing to compare wants nothing
        return DenseTarget((wanted / block.shape[0]).to(precision_of(block)))

    def mirrored(self) -> Soft:
        return Soft(_exchanged(self.features), self.kernel)


@dataclass(frozen=True, eq=False, repr=False)
class Neighbors(Target):
    """Each row is wanted at its nearest neighbours in another space: mass 1/N a row, in equal parts.

    Args:
        features: the batch in that space, one tensor (n, k) for all views or one per view.
        neighbors: how many, at least 1; at most as many as a row is compared with are taken.

    Raises:
        UsageError: neighbors is not positive or, on a block, the features are not one per item.
    """

    features: Tensor | tuple[Tensor, ...] = field(repr=False)
    neighbors: int = 5

    def __post_init__(self) -> None:
        check(self.neighbors >= 1, f"neighbors: expected at least 1, got {self.neighbors!r}.")

    def __call__(self, block: Block, attributes: Attributes) -> SparseTarget:
        """Return the target plan of a block."""
        n, m = block.shape
        with torch.no_grad():
            x, y = _feature_sides(self.features, block)
            distance = torch.cdist(x, y)
            for mask in block.pattern.masks:
                distance.masked_fill_(mask.tile(slice(None), slice(None)), torch.inf)
            found = distance.topk(min(self.neighbors, m), largest=False)
        near = found.values < torch.inf
        rows = torch.arange(n, device=x.device)[:, None].expand_as(near)[near]
        share = 1 / (n * near.sum(1).clamp_min(1)).to(precision_of(block))
        return SparseTarget(rows, found.indices[near], share[rows], block.shape)

    def mirrored(self) -> Neighbors:
        return Neighbors(_exchanged(self.features), self.neighbors)


def _feature_sides(features: Tensor | tuple[Tensor, ...], block: Block) -> tuple[Tensor, Tensor]:
    """Return the features of the rows and of the columns; the same tensor where rows and columns are the same."""
    items = block.pattern.size
    views = tuple(gather(view) for view in (features if isinstance(features, tuple) else (features,)))
    for view in views:
        got = f"{tuple(view.shape)}" if isinstance(view, Tensor) else type(view).__name__
        good = isinstance(view, Tensor) and view.ndim == 2 and len(view) == items
        check(good, f"features: expected one row per item, ({items}, k), got {got}.")
    if len(views) == 1:
        x, y = block.pattern.spread(views[0])
        return (x, x) if block.x is block.y else (x, y)
    stacked = torch.cat(views)
    good = len(stacked) == block.shape[0]
    check(good or block.x is not block.y, f"features: expected {block.shape[0] // items} views, got {len(views)}.")
    return (stacked, stacked) if block.x is block.y else (views[0], views[1])


def _exchanged(features: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return features[::-1] if isinstance(features, tuple) else features
