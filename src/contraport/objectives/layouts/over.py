"""Layouts over another one: what that compares, of other embeddings or less of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contraport.engine import Threshold, normalize
from contraport.errors import check, check_whole, is_number
from contraport.objectives.layouts.block import Block
from contraport.objectives.layouts.layout import Layout, Traits


class Over(Layout):
    """A layout over another one, in whose place it stands; what it does not change is the other's.

    Attributes:
        layout: the other one.
    """

    layout: Layout

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the other layout's blocks."""
        return self.layout(*views)

    @property
    def traits(self) -> Traits:
        """What is true of the other layout."""
        return self.layout.traits

    def guide(self, block: Block, features: tuple[Tensor, Tensor]) -> Block:
        """Return one direction of a block as the other layout has it under features."""
        return self.layout.guide(block, features)

    def further(self, negatives: Tensor) -> Tensor:
        """Return what the other layout compares of further columns."""
        return self.layout.further(negatives)


@dataclass(frozen=True, repr=False)
class Leading(Over):
    """Another layout over the first coordinates of each embedding only.

    Args:
        dimensions: how many coordinates, at least 1.
        layout: the layout.

    Raises:
        UsageError: dimensions is not positive or, in the call, larger than the embeddings have.

    >>> import torch, contraport as cp
    >>> (block,) = cp.Leading(2, cp.Cross())(torch.zeros(3, 5), torch.zeros(3, 5))
    >>> block.x.shape
    torch.Size([3, 2])
    """

    dimensions: int
    layout: Layout

    def __post_init__(self) -> None:
        check_whole("dimensions", self.dimensions)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the other layout's blocks."""
        d = views[0].shape[1]
        check(self.dimensions <= d, f"dimensions: expected at most {d}, the embeddings' size, got {self.dimensions}.")
        return self.layout(*(z[:, : self.dimensions] for z in views))

    def further(self, negatives: Tensor) -> Tensor:
        """Return the first coordinates of further columns, as the other layout compares them."""
        return self.layout.further(negatives[:, : self.dimensions])


@dataclass(frozen=True, repr=False)
class Guided(Over):
    """Another layout, less the pairs that a teacher finds more alike than the row and its positive.

    The call needs ``features=`` of the teacher. The pair (i, j) is left out where cos(t_i, t_j) > cos(t_i, t_i+) -
    margin, the row's positives never; of several positives, the one that the teacher finds least alike. Further columns
    (``negatives=``) have no features and stay. It is judged within a tile, in O((N + M) k) memory.

    Args:
        layout: the layout.
        margin: in units of the cosine.

    Raises:
        UsageError: the margin is not a finite number; the layout's columns show no items.

    Source: Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives, section 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Guided(cp.Cross(), 0.5), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(3), torch.eye(3), features=torch.tensor([[1.0, 0], [1, 0.1], [0, 1]]))
    tensor([[0.2437, 0.0000, 0.0896],
            [0.0000, 0.2437, 0.0896],
            [0.0706, 0.0706, 0.1920]])
    """

    layout: Layout
    margin: float = 0.0

    def __post_init__(self) -> None:
        good = is_number(self.margin) and math.isfinite(self.margin)
        check(good, f"margin: expected a finite number, got {self.margin!r}.")
        traits = self.layout.traits
        check(traits.of_items and not traits.shared_columns, "layout: expected columns that show items.")

    @property
    def traits(self) -> Traits:
        """What is true of the other layout, and that it asks for features.

        Where those of an item are the same in all views, as a teacher's of items are, nothing is more alike than these.
        """
        return self.layout.traits._replace(guided=True, guided_by_views=self.margin <= 0)

    def guide(self, block: Block, features: tuple[Tensor, Tensor]) -> Block:
        """Return one direction of a block without the pairs that are too alike."""
        block = super().guide(block, features)
        pattern = block.pattern
        x = normalize(features[0])
        y = x if features[0] is features[1] else normalize(features[1])
        rows, columns = pattern.positives
        alike = torch.linalg.vecdot(x[rows], y[columns])
        limits = x.new_full((len(x),), torch.inf).scatter_reduce(0, rows, alike, "amin") - self.margin
        mask = Threshold((x, y), (limits, x.new_zeros(len(y))), pattern.items)
        return replace(block, pattern=replace(pattern, masks=(*pattern.masks, mask), crowded=False))
