"""Search for better partners: the item whose second view fits the first view of a suspected mismatch.

A wrong pair took its second member from another pair, which is then wrong too. So candidates come from suspected
mismatches only: the members of a right pair already have their partners.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contraport.auditing.pairs.pair_statistics import score_pairs
from contraport.auditing.pairs.paired_features import PairedFeatures, PairIndices, gather_mean, split_into_row_blocks

SHORTLIST = 10
"""Candidates scored for each item."""

BLOCK = 4_096
"""Items processed at a time."""

MIN_CANDIDATE_SHARE = 0.1
"""Least share of the pairs whose second members are candidates, so that partners are also proposed for pairs that a
user inspects beyond the estimated noise rate."""


def select_lowest_scoring_items(scores: Tensor, rate: float) -> Tensor:
    """Select the items with the lowest scores, int64 ``(f,)``: their second views may belong to other pairs.

    Args:
        scores: scores of all pairs, ``(n,)``; higher is better.
        rate: estimated share of wrong pairs.

    >>> select_lowest_scoring_items(torch.tensor([0.9, 0.1, 0.8, 0.2]), 0.5)
    tensor([1, 3])
    """
    number = math.ceil(max(rate, MIN_CANDIDATE_SHARE) * len(scores))
    return scores.argsort(stable=True)[:number].sort().values


def find_better_partners(
    paired: PairedFeatures, items: Tensor, statistic: str = "neighbors", *, candidates: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Find the best other partner of each item, int64 ``(p,)``, with its score, ``(p,)``; -1 if none is better.

    The candidates nearest to the partners of an item's neighbors are scored. If none scores above the item's own
    partner, the result is -1 with the score of its own.

    Args:
        paired: features of all items in both views.
        items: items to find partners for, ``(p,)``.
        statistic: the statistic that scores pairs.
        candidates: the items whose second views may be partners, ``(f,)``; default: all.

    >>> u = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> swapped = torch.cat([u[:1].neg(), u[1:2], u[2:]])
    >>> swapped[[0, 1]] = u[[1, 0]]
    >>> find_better_partners(PairedFeatures((u, swapped)), torch.tensor([0, 1]), "likeness")[0].tolist()
    [1, 0]
    """
    own = score_pairs(paired, PairIndices(items, items), statistic)
    candidates = paired.observed_pairs.second if candidates is None else candidates
    blocks = [_best_on_shortlist(paired, block, candidates, statistic) for block in items.split(BLOCK)]
    partner, best = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return torch.where(best > own, partner, -1), torch.maximum(best, own)


def _best_on_shortlist(
    paired: PairedFeatures, items: Tensor, candidates: Tensor, statistic: str
) -> tuple[Tensor, Tensor]:
    """Return the partner with the highest score on the shortlist of each item, and the score, ``(p,)`` each."""
    shortlist = torch.cat(
        [_shortlist_candidates(paired, block, candidates) for block in split_into_row_blocks(items, len(candidates))]
    )
    pairs = PairIndices(items.repeat_interleave(shortlist.shape[1]), shortlist.flatten())
    best, place = score_pairs(paired, pairs, statistic).reshape(shortlist.shape).max(dim=1)
    return shortlist.gather(1, place[:, None]).flatten(), best


def _shortlist_candidates(paired: PairedFeatures, items: Tensor, candidates: Tensor) -> Tensor:
    """Return the candidates nearest to the mean of the partners of the neighbors of each item, ``(p, SHORTLIST)``."""
    near, _ = paired.find_pair_neighbors(PairIndices(items, items))
    values = paired.features[1]
    similarity = gather_mean(values, near) @ values[candidates].T
    similarity.masked_fill_(items[:, None] == candidates, -torch.inf)  # its own partner is not another one
    return candidates[similarity.topk(min(SHORTLIST, len(candidates)), 1).indices]
