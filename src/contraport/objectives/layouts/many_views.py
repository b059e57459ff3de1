"""Layouts of any number of views: pairs of them, or each by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from contraport.engine import Mask, remembered
from contraport.errors import UsageError, check
from contraport.objectives.layouts.block import Block, Pattern, pattern_of_pairs
from contraport.objectives.layouts.layout import Layout, Traits


class Graph(Layout):
    """Some pairs of views, each in both directions, summed. A subclass says which pairs."""

    @abstractmethod
    def edges(self, views: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the pairs of views that are compared."""

    @property
    def traits(self) -> Traits:
        """What is true of it: it takes any number of views."""
        return Traits(takes_several=True)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return a block for each pair of views, (n, n)."""
        check(len(views) >= 2, f"views: {self!r} compares 2 or more views, got {len(views)}.")
        pattern = pattern_of_pairs(len(views[0]), 1.0, True, views[0].device)
        return [Block(pattern, one, other) for one, other in self.edges(views)]


@dataclass(frozen=True, repr=False)
class FullGraph(Graph):
    """Every pair of views, each in both directions, summed: V (V - 1) / 2 blocks, (n, n) each.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.

    >>> import torch, contraport as cp
    >>> len(cp.FullGraph()(*torch.zeros(4, 3, 2)))
    6
    """

    def edges(self, views: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return all pairs."""
        return list(combinations(views, 2))


@dataclass(frozen=True, repr=False)
class CoreView(Graph):
    """The first view with every other, each in both directions, summed: V - 1 blocks, (n, n) each.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.

    >>> import torch, contraport as cp
    >>> len(cp.CoreView()(*torch.zeros(4, 3, 2)))
    3
    """

    def edges(self, views: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the first view beside each other one."""
        return [(views[0], other) for other in views[1:]]


@dataclass(frozen=True, repr=False)
class Within(Layout):
    """Each view with itself, averaged over the views; a self pair is positive, and kept out of the denominators.

    Args:
        summed: add the views up rather than average them.

    Raises:
        UsageError: in the call, further columns (``negatives=``): a view is compared with itself.

    >>> import torch, contraport as cp
    >>> [block.shape for block in cp.Within()(torch.zeros(3, 2), torch.zeros(3, 2))]
    [(3, 3), (3, 3)]
    """

    summed: bool = False

    @property
    def traits(self) -> Traits:
        """What is true of it: it takes any number of views, of which none is compared with another."""
        return Traits(takes_several=True, matches_views=False, compares_positives=False)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block per view, (n, n) each."""
        weight = 1.0 if self.summed else 1 / len(views)
        pattern = _each_with_itself(len(views[0]), weight, views[0].device)
        return [Block(pattern, z, z) for z in views]

    def further(self, negatives: Tensor) -> Tensor:
        """Raise `UsageError`: a view is compared with itself."""
        raise UsageError("negatives: this objective compares each view with itself only (Within).")


@remembered
def _each_with_itself(size: int, weight: float, device: torch.device) -> Pattern:
    items = torch.arange(size, device=device)
    masks = (Mask((items, items)),)
    return Pattern(size, items, items, (items, items), masks, weight, one_each=True, crowded=size > 1)
