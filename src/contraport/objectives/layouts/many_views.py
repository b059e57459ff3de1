"""Layouts of any number of views: pairs of them, or each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from contraport.engine import Mask, remembered
from contraport.errors import UsageError, check
from contraport.objectives.layouts.block import Block, Pattern, paired
from contraport.objectives.layouts.layout import Layout


@dataclass(frozen=True, repr=False)
class FullGraph(Layout):
    """Every pair of views, each in both directions, summed.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.
    """

    @property
    def takes_several(self) -> bool:
        """Whether it takes any number of views: it does."""
        return True

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return V (V - 1) / 2 blocks, (n, n) each."""
        _several("full graph", views)
        pattern = _both_ways(views)
        return [Block(pattern, a, b) for a, b in combinations(views, 2)]


@dataclass(frozen=True, repr=False)
class CoreView(Layout):
    """The first view with every other, each in both directions, summed.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.
    """

    @property
    def takes_several(self) -> bool:
        """Whether it takes any number of views: it does."""
        return True

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return V - 1 blocks, (n, n) each."""
        _several("core view", views)
        pattern = _both_ways(views)
        return [Block(pattern, views[0], other) for other in views[1:]]


@dataclass(frozen=True, repr=False)
class Within(Layout):
    """Each view with itself, self pairs left out, averaged over the views; nothing is positive."""

    @property
    def takes_several(self) -> bool:
        """Whether it takes any number of views: it does."""
        return True

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block per view, (n, n) each."""
        pattern = _each_with_itself(len(views[0]), len(views), views[0].device)
        return [Block(pattern, z, z) for z in views]

    def further(self, negatives: Tensor) -> Tensor:
        """Raise `UsageError`: a view is compared with itself."""
        raise UsageError("negatives: this objective compares each view with itself only (Within).")


def _several(layout: str, views: Sequence[Tensor]) -> None:
    check(len(views) >= 2, f"views: the {layout} layout compares 2 or more views, got {len(views)}.")


def _both_ways(views: Sequence[Tensor]) -> Pattern:
    return paired(len(views[0]), 1.0, True, views[0].device)


@remembered
def _each_with_itself(size: int, views: int, device: torch.device) -> Pattern:
    items = torch.arange(size, device=device)
    nothing = items[:0], items[:0]
    return Pattern(size, items, items, nothing, (Mask((items, items)),), 1 / views, crowded=size > 1)
