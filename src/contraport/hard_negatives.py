"""Mining of hard negatives, the most similar wrong candidates of each anchor.

Likely false negatives are left out. The rule is that of `mine_hard_negatives` of sentence-transformers, so that equal
settings give equal negatives. Among more than a billion pairs, the most similar candidates are found by cells: most of
them, with a recall that is logged.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport._utils.vector_search import build_approximate_search_if_faster
from contraport.catalog.data_option_parsers import MiningRule
from contraport.data.duplicate_groups import first_index_by_group, number_by_first_occurrence
from contraport.engine import normalize
from contraport.errors import check
from contraport.seeding import torch_generator

MAX_BLOCK_SIMILARITIES = 2**24  # maximum number of similarities held in memory at a time

MAX_EXACT_PAIRS = 10**9
"""Maximum number of queries times candidates whose similarities are all computed; beyond it, a search by cells."""

RECALL_QUERIES = 1_000
"""Number of queries that calibrate the search by cells, and of as many others on which its recall is measured."""

CELL_SEARCH_BLOCK_QUERIES = 2**14  # number of queries whose candidates by cells are held in memory at a time
log = logging.getLogger("contraport.hard_negatives")


class MinedNegatives(NamedTuple):
    """Hard negatives of `n` pairs.

    Attributes:
        positions: for each pair, the items whose second views are negatives of the pair's first view, the most
            similar first, int64 ``(n, k)``; -1 where the rule leaves fewer than k.
        scores: cosine similarity of the first view with each negative, ``(n, k)``; NaN where there is none.
        positive_scores: cosine similarity of the two views of each pair, ``(n,)``.
    """

    positions: Tensor
    scores: Tensor
    positive_scores: Tensor

    def __str__(self) -> str:
        total = int((self.positions >= 0).sum())
        pairs, k = self.positions.shape
        short = int((self.positions < 0).any(1).sum())
        fewer = f" ({short:,} pairs have fewer than {k:,})" if short else ""
        return (
            f"{total:,} negatives of {pluralize(pairs, 'pair')}{fewer}; mean cosine similarity "
            f"{self.scores.nanmean():.3f}, that of the pairs {self.positive_scores.mean():.3f}"
        )


def mine_hard_negatives(
    anchors: Tensor,
    candidates: Tensor,
    rule: MiningRule,
    *,
    anchor_content_ids: Tensor | None = None,
    candidate_content_ids: Tensor | None = None,
    trusted_item_mask: Tensor | None = None,
    excluded_partners: Tensor | None = None,
    seed: int = 0,
) -> MinedNegatives:
    """For each first view, mine the most similar second views of other items.

    Equal first views are one query, with the second views of all its pairs as positives; equal second views are one
    candidate, represented by the first item that has it. For up to a billion queries times candidates the search is
    exact. Beyond it 99% of the most similar candidates are found by cells if that is faster; the recall is logged.

    Args:
        anchors: embeddings of the first views, ``(n, d)``.
        candidates: embeddings of the second views, ``(n, d)``.
        rule: selects negatives among the most similar candidates.
        anchor_content_ids: content number of each first view, ``(n,)``; default: all differ.
        candidate_content_ids: content number of each second view, ``(n,)``; default: all differ.
        trusted_item_mask: true for items whose pair is no suspected mismatch, ``(n,)``; the others get no negatives,
            and their own second view is neither a positive nor a negative. Default: all.
        excluded_partners: for each first view the index of an item whose second view may also belong to it, and is
            no negative, ``(n,)``; -1: none. Default: none.
        seed: seed of random sampling.

    Raises:
        UsageError: the embeddings have different shapes.

    >>> views = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> mine_hard_negatives(views, views, MiningRule(k=2)).positions.tolist()
    [[1, 2], [0, 2], [1, 0]]
    >>> mine_hard_negatives(views, views, MiningRule(k=2, relative_margin=0.05)).positions.tolist()
    [[2, -1], [2, -1], [1, 0]]
    """
    shapes = tuple(anchors.shape), tuple(candidates.shape)
    check(shapes[0] == shapes[1], f"candidates: must have the shape of anchors, {shapes[0]}, got {shapes[1]}.", "shape")
    items = torch.arange(len(anchors))
    query_of = items if anchor_content_ids is None else number_by_first_occurrence(anchor_content_ids.cpu())
    candidate_of = items if candidate_content_ids is None else number_by_first_occurrence(candidate_content_ids.cpu())
    queries, columns = first_index_by_group(query_of), first_index_by_group(candidate_of)
    anchors, candidates = (normalize(rows.detach().float()) for rows in (anchors, candidates))
    is_trusted = torch.ones(len(items), dtype=torch.bool) if trusted_item_mask is None else trusted_item_mask
    excluded = [query_of * len(columns) + candidate_of]
    if excluded_partners is not None:
        excluded.append((query_of * len(columns) + candidate_of[excluded_partners])[excluded_partners >= 0])
    pair_scores = (anchors * candidates).sum(1).cpu()
    least = pair_scores.new_full((len(queries),), torch.inf).scatter_reduce(
        0, query_of[is_trusted], pair_scores[is_trusted], "amin"
    )
    columns_found, scores = _search_negatives_with_scores(
        anchors[queries.to(anchors.device)],
        candidates[columns.to(anchors.device)],
        rule,
        excluded_pair_codes=torch.cat(excluded).unique(),
        lowest_positive_scores=least,
        seed=seed,
    )
    items_found = torch.where(scores.isnan(), -1, columns[columns_found])
    positions, scores = items_found[query_of], scores[query_of]
    positions[~is_trusted] = -1
    return MinedNegatives(positions, torch.where(positions < 0, torch.nan, scores), pair_scores)


def _search_negatives_with_scores(
    queries: Tensor,
    columns: Tensor,
    rule: MiningRule,
    *,
    excluded_pair_codes: Tensor,
    lowest_positive_scores: Tensor,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Return the chosen negatives of each query and their scores, ``(q, k)``.

    A missing negative has the score NaN. Queries, ``(q, d)``, and columns, ``(c, d)``, are unit vectors.
    `excluded_pair_codes` has the sorted codes, query times c plus column, of pairs that are no negatives;
    `lowest_positive_scores`, ``(q,)``, the lowest score of the positives of each query.
    """
    total = len(columns)
    most_positives = int((excluded_pair_codes // total).bincount().max())
    last = rule.resolve_range_max(most_positives)
    # More than the rule considers: positives are among the most similar, and are removed afterwards.
    count = min(last + most_positives, total)
    search = None
    if len(queries) * total > MAX_EXACT_PAIRS and len(queries) > 1:
        generator = torch_generator("negatives.cells", len(queries), total)
        search = build_approximate_search_if_faster(
            queries, columns, count, generator, min_recall=0.99, sample_size=RECALL_QUERIES
        )
    if search is not None:
        message = "Compared %s first views with %s of %s candidates each: recall %.3f on %s of them."
        sizes = [f"{number:,}" for number in (len(queries), search.min_compared, total, search.num_recall_queries)]
        log.info(message, *sizes[:3], search.recall, sizes[3])
    block_size = max(1, MAX_BLOCK_SIMILARITIES // total) if search is None else CELL_SEARCH_BLOCK_QUERIES
    positions, scores = [], []
    for first in range(0, len(queries), block_size):
        block = queries[first : first + block_size]
        if search is None:
            nearest: tuple[Tensor, Tensor] = (block @ columns.T).topk(count, dim=1)
        else:
            nearest = search.top_products_and_indices(block, count)
        similarity, column = (part.cpu() for part in nearest)
        rows = torch.arange(first, first + len(block))[:, None]
        removed = torch.isin(rows * total + column, excluded_pair_codes)
        positive = lowest_positive_scores[rows]
        if rule.absolute_margin is not None:
            removed |= similarity + rule.absolute_margin > positive
        if rule.relative_margin is not None:
            removed |= similarity > positive - positive.abs() * rule.relative_margin
        if rule.max_score is not None:
            removed |= similarity > rule.max_score
        if rule.min_score is not None:
            removed |= similarity < rule.min_score
        # Ranks count the candidates that are left: a stable sort moves removed ones to the end.
        order = removed.long().argsort(dim=1, stable=True)[:, rule.range_min : last]
        similarity, column = similarity.masked_fill(removed, torch.nan).gather(1, order), column.gather(1, order)
        if rule.sampling == "random":
            draws = torch.rand(similarity.shape, generator=torch_generator("negatives.sample", seed, first))
            drawn = draws.masked_fill(similarity.isnan(), 2).argsort(dim=1)[:, : rule.k].sort(dim=1).values
            similarity, column = similarity.gather(1, drawn), column.gather(1, drawn)
        missing = max(0, rule.k - similarity.shape[1])
        scores.append(F.pad(similarity[:, : rule.k], (0, missing), value=torch.nan))
        positions.append(F.pad(column[:, : rule.k], (0, missing)))
    return torch.cat(positions), torch.cat(scores)
