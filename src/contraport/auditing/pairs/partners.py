"""Better partners: for a pair that seems wrong, the member of another pair that would suit the first one more.

A wrong pair has taken its second member from another pair, which is then wrong too. So partners are looked for among
the pairs that seem wrong themselves: what is in a right pair already has its place.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contraport.auditing.pairs.pair_statistics import scores
from contraport.auditing.pairs.paired_features import ItemPairs, PairedFeatures, gather_mean, split_rows

SHORTLIST = 10
"""How many partners of an item are judged."""

BLOCK = 4_096
"""How many items at a time."""

LEAST_FREE = 0.1
"""The share of the pairs whose second members are taken to be free at least: who looks at more pairs than seem wrong
finds partners for these too."""


def select_partner_candidates(scores: Tensor, rate: float) -> Tensor:
    """Return the pairs whose second members may belong to others, int64 ``(f,)``: those that seem wrong.

    Args:
        scores: of all pairs, ``(n,)``; more is better.
        rate: the share that seems wrong.

    >>> select_partner_candidates(torch.tensor([0.9, 0.1, 0.8, 0.2]), 0.5)
    tensor([1, 3])
    """
    number = math.ceil(max(rate, LEAST_FREE) * len(scores))
    return scores.argsort(stable=True)[:number].sort().values


def find_better_partners(
    sides: PairedFeatures, items: Tensor, statistic: str = "neighbors", *, free: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the best other partner of some items, int64 ``(p,)``, and its score, ``(p,)``.

    Judged are those that are most like the partners of an item's neighbours. Where none scores above the item's own
    partner the answer is -1, with the score of its own.

    Args:
        sides: what is known of all items.
        items: ``(p,)``.
        statistic: by which pairs are judged.
        free: the items whose second views may be partners, ``(f,)``; default: all.

    >>> u = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> swapped = torch.cat([u[:1].neg(), u[1:2], u[2:]])
    >>> swapped[[0, 1]] = u[[1, 0]]
    >>> find_better_partners(PairedFeatures((u, swapped)), torch.tensor([0, 1]), "likeness")[0].tolist()
    [1, 0]
    """
    own = scores(sides, ItemPairs(items, items), statistic)
    free = sides.given.second if free is None else free
    blocks = [_judged(sides, rows, free, statistic) for rows in items.split(BLOCK)]
    partner, best = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return torch.where(best > own, partner, -1), torch.maximum(best, own)


def _shortlist(sides: PairedFeatures, items: Tensor, free: Tensor) -> Tensor:
    """Return the free items whose second views are most like those of an item's neighbours, ``(p, SHORTLIST)``."""
    near, _ = sides.neighbors_of(ItemPairs(items, items))
    values = sides.features[1]
    likeness = gather_mean(values, near) @ values[free].T
    likeness.masked_fill_(items[:, None] == free, -torch.inf)  # its own partner is no other
    return free[likeness.topk(min(SHORTLIST, len(free)), 1).indices]


def _judged(sides: PairedFeatures, items: Tensor, free: Tensor, statistic: str) -> tuple[Tensor, Tensor]:
    """Return the best of the partners on the shortlist of each item, and its score."""
    candidates = torch.cat([_shortlist(sides, some, free) for some in split_rows(items, len(free))])
    pairs = ItemPairs(items.repeat_interleave(candidates.shape[1]), candidates.flatten())
    best, place = scores(sides, pairs, statistic).reshape(candidates.shape).max(dim=1)
    return candidates.gather(1, place[:, None]).flatten(), best
