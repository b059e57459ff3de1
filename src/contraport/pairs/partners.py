"""Better partners: for a pair that seems wrong, the member of another pair that would suit the first one more."""

from __future__ import annotations

import torch
from torch import Tensor

from contraport.pairs.sides import ItemPairs, Sides, in_rows, mean_of
from contraport.pairs.statistics import scores

SHORTLIST = 10
"""How many partners of an item are judged."""

BLOCK = 4_096
"""How many items at a time."""


def better_partners(sides: Sides, items: Tensor, statistic: str = "neighbors") -> tuple[Tensor, Tensor]:
    """Return the best other partner of some items, int64 ``(p,)``, and its score, ``(p,)``.

    Judged are those that are most like the partners of an item's neighbours. Where none scores above the item's own
    partner the answer is -1, with the score of its own.

    Args:
        sides: what is known of all items.
        items: ``(p,)``.
        statistic: by which pairs are judged.

    >>> u = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> swapped = torch.cat([u[:1].neg(), u[1:2], u[2:]])
    >>> swapped[[0, 1]] = u[[1, 0]]
    >>> better_partners(Sides((u, swapped)), torch.tensor([0, 1]), "likeness")[0].tolist()
    [1, 0]
    """
    own = scores(sides, ItemPairs(items, items), statistic)
    blocks = [_judged(sides, rows, statistic) for rows in items.split(BLOCK)]
    partner, best = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return torch.where(best > own, partner, -1), torch.maximum(best, own)


def _shortlist(sides: Sides, items: Tensor) -> Tensor:
    """Return the items whose second views are most like those of an item's neighbours, ``(p, SHORTLIST)``."""
    near, _ = sides.neighbors_of(ItemPairs(items, items))
    values = sides.features[1]
    likeness = mean_of(values, near) @ values.T
    likeness.scatter_(1, items[:, None], -torch.inf)  # its own partner is no other
    return likeness.topk(SHORTLIST, 1).indices


def _judged(sides: Sides, items: Tensor, statistic: str) -> tuple[Tensor, Tensor]:
    """Return the best of the partners on the shortlist of each item, and its score."""
    candidates = torch.cat([_shortlist(sides, some) for some in in_rows(items, len(sides))])
    pairs = ItemPairs(items.repeat_interleave(SHORTLIST), candidates.flatten())
    best, place = scores(sides, pairs, statistic).reshape(candidates.shape).max(dim=1)
    return candidates.gather(1, place[:, None]).flatten(), best
