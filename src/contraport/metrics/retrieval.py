"""Retrieval: ranks of an item's other views, match probabilities, nearest neighbors, zero-shot classes, links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check
from contraport.metrics.intervals import ItemValues

COSINES_AT_ONCE = 1 << 24
"""Number of cosines held in memory at a time: 64 MiB."""

TIE_TOLERANCE = 4e-6
"""Distances between unit vectors that differ by at most this are ties: rounding depends on the position in a batch."""


def retrieval_ranks(*views: Tensor, content_ids: Tensor | None = None) -> np.ndarray[Any, Any]:
    """Return the rank of each item's other view by cosine, `(n, k)`; rank 1 is the nearest.

    One column per ordered pair of views, `(n, d)` each, in the order of `itertools.permutations`: the first view of a
    pair queries the second. Ties up to the rounding of single precision count as nearer, so that a collapsed encoder
    has the last rank, not the first.

    Args:
        views: embeddings of the same items.
        content_ids: identity of the content of each view, `(n, views)` integers, equal where two items share a view,
            such as one image with several captions. A shared view then counts once, as a query and as a candidate, and
            the best of its matches counts.

    Raises:
        UsageError: the shapes differ.

    >>> retrieval_ranks(torch.eye(3), torch.eye(3)[[0, 2, 1]]).tolist()
    [[1, 1], [3, 3], [3, 3]]
    >>> ids = torch.tensor([[0, 0], [0, 1], [1, 2]])
    >>> retrieval_ranks(torch.eye(3)[[0, 0, 1]], torch.eye(3)[[0, 2, 1]], content_ids=ids).tolist()
    [[1, 1], [1, 2], [1, 1]]
    """
    check(len(views) > 1, f"views: must be at least 2, got {len(views)}.")
    points = [_normalize_views(views[0], view)[1] for view in views]
    ids = torch.arange(len(points[0])).expand(len(points), -1) if content_ids is None else content_ids.T
    ranks = [_compute_match_ranks(points[v], points[w], ids[v], ids[w]) for v, w in ordered_view_pairs(len(points))]
    return np.stack(ranks, axis=1)


def ordered_view_pairs(views: int) -> list[tuple[int, int]]:
    """Return all ordered pairs of the positions of `views` views.

    >>> ordered_view_pairs(2)
    [(0, 1), (1, 0)]
    """
    return list(permutations(range(views), 2))


def log_match_probabilities(z0: Tensor, z1: Tensor, temperature: float) -> np.ndarray[Any, Any]:
    """Return the log probability of each item's other view in the softmax over all items, `(n,)`.

    Logits are cosines over the temperature; the mean of both directions is returned. Minus its mean is the InfoNCE loss
    with all items in one batch.

    Raises:
        UsageError: the shapes differ.

    >>> bool(np.allclose(log_match_probabilities(torch.ones(4, 2), torch.ones(4, 2), 0.1), -np.log(4)))
    True
    """
    a, b = _normalize_views(z0, z1)

    def one_way(queries: Tensor, keys: Tensor) -> Tensor:
        positives = (queries * keys).sum(dim=1) / temperature
        sums = [(chunk @ keys.T / temperature).logsumexp(dim=1) for chunk in queries.split(_max_rows_at_once(keys))]
        return positives - torch.cat(sums)

    return ((one_way(a, b) + one_way(b, a)) / 2).cpu().numpy()


def nearest_neighbors(z: Tensor, count: int) -> Tensor:
    """Return the positions of each item's nearest other items in `z` `(n, d)` by cosine, `(n, count)`."""
    z = F.normalize(z.float(), dim=1)
    nearest, start = [], 0
    for chunk in z.split(_max_rows_at_once(z)):
        cosines = chunk @ z.T
        cosines.diagonal(start).fill_(-torch.inf)  # not the item itself
        nearest.append(cosines.topk(count, dim=1).indices)
        start += len(chunk)
    return torch.cat(nearest)


def _normalize_views(z0: Tensor, z1: Tensor) -> tuple[Tensor, Tensor]:
    check(
        z0.ndim == 2 and z0.shape == z1.shape, f"z1: shape must be {tuple(z0.shape)}, got {tuple(z1.shape)}.", "shape"
    )
    return F.normalize(z0.double(), dim=1), F.normalize(z1.double(), dim=1)


def _compute_match_ranks(queries: Tensor, keys: Tensor, query_ids: Tensor, key_ids: Tensor) -> np.ndarray[Any, Any]:
    """Return the rank of the best match of each item's query among the distinct keys."""
    first_queries, query = first_occurrences(query_ids)
    first_keys, key = first_occurrences(key_ids)
    queries, keys = queries[first_queries.to(queries.device)], keys[first_keys.to(keys.device)]
    query_of, key_of = query.to(keys.device), key.to(keys.device)
    ranks, start = [], 0
    for chunk in queries.split(_max_rows_at_once(keys)):
        here = (query_of >= start) & (query_of < start + len(chunk))
        rows, columns = query_of[here] - start, key_of[here]
        cosines = chunk @ keys.T
        # Matches are few, so they are taken out by index: a mask of all pairs takes as long as the product.
        best = cosines.new_full((len(chunk),), -torch.inf).scatter_reduce(0, rows, cosines[rows, columns], "amax")
        cosines[rows, columns] = -torch.inf
        ranks.append((cosines >= _tie_threshold(best)[:, None]).sum(dim=1) + 1)
        start += len(chunk)
    return torch.cat(ranks).cpu()[query].numpy()


def _tie_threshold(cosines: Tensor) -> Tensor:
    """Return the smallest cosine that counts as equal to each given cosine, up to rounding.

    The tolerance applies to distances, which rounding moves by as much as the vectors. The cosine of nearly equal
    vectors moves by the square of that: a fixed tolerance of cosines would tie everything in a narrow cone.
    """
    distances = (2 - 2 * cosines).clamp(min=0).sqrt() + TIE_TOLERANCE
    return 1 - distances.square() / 2


def first_occurrences(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first position of each distinct id, and for each id its index among the distinct ones."""
    distinct, index = torch.unique(ids, return_inverse=True)
    first = torch.full((len(distinct),), len(ids)).scatter_reduce(0, index, torch.arange(len(ids)), "amin")
    return first, index


def _max_rows_at_once(keys: Tensor) -> int:
    return max(1, COSINES_AT_ONCE // len(keys))


TEMPLATES = ("a photo of a {}.",)
"""Default texts that name a class."""


def class_prompts(classes: Sequence[str], templates: Sequence[str] = TEMPLATES) -> list[str]:
    """Return the texts that name each class, one per template, class by class.

    >>> class_prompts(["bag", "coat"], ["a {}", "a photo of a {}"])
    ['a bag', 'a photo of a bag', 'a coat', 'a photo of a coat']
    """
    return [template.replace("{}", name) for name in classes for template in templates]


def class_embeddings(texts: Tensor, templates: int) -> Tensor:
    """Return the embedding of each class on the unit sphere, ``(classes, d)``: the mean of its text embeddings.

    Args:
        texts: embeddings of `class_prompts`, ``(classes * templates, d)``.
        templates: number of templates.

    Source: Radford et al. (2021), Learning transferable visual models from natural language supervision (CLIP), section
    3.1.4.
    """
    check(len(texts) % templates == 0, f"texts: need {templates} per class, got {len(texts)} in all.", "shape")
    means = F.normalize(texts, dim=1).view(-1, templates, texts.shape[1]).mean(dim=1)
    return F.normalize(means, dim=1)


def zero_shot_correctness(items: Tensor, labels: Tensor, classes: Tensor) -> ItemValues:
    """Return whether each item is nearest to its own class by cosine, ``(n,)``; ties go to the first class.

    Args:
        items: embeddings, ``(n, d)``.
        labels: class of each item, ``(n,)``.
        classes: embeddings of the classes, from `class_embeddings`, ``(classes, d)``.

    >>> import torch
    >>> zero_shot_correctness(torch.eye(2), torch.tensor([0, 0]), torch.eye(2)).tolist()
    [True, False]
    """
    nearest = (F.normalize(items, dim=1) @ F.normalize(classes, dim=1).T).argmax(dim=1)
    hits: ItemValues = (nearest.cpu() == labels.cpu()).numpy()
    return hits


MAX_RANKED_COLUMNS = 100
"""Maximum number of best columns that are kept for each row."""


@dataclass(frozen=True)
class LinkRanking:
    """Columns of a coupling, ranked for each row of the test pairs without the columns of the row's training pairs.

    Attributes:
        row_index: index of each test pair's row among the ranked rows, (m,).
        pair_ranks: rank of each test pair's column, from 1, (m,); infinity if it is not among those kept.
        ranked_columns: column at each rank, (rows, ranks).
        popularity: number of training pairs of each column, (columns,).
        is_new_row: whether the row of each test pair has no training pair, (m,).
    """

    row_index: np.ndarray[Any, Any]
    pair_ranks: np.ndarray[Any, Any]
    ranked_columns: np.ndarray[Any, Any]
    popularity: np.ndarray[Any, Any]
    is_new_row: np.ndarray[Any, Any]

    def recall(self, k: int) -> np.ndarray[Any, Any]:
        """Return whether each test pair's column is among the k nearest of its row, (m,)."""
        return np.asarray(self.pair_ranks <= k)

    def ndcg(self, k: int) -> np.ndarray[Any, Any]:
        """Return values per test pair, (m,), whose mean is the mean NDCG of the rows.

        Source: Järvelin and Kekäläinen (2002), Cumulated gain-based evaluation of IR techniques, with binary gains.
        """
        partners = np.bincount(self.row_index)
        ideal = np.concatenate([[0.0], (1 / np.log2(np.arange(2, k + 2))).cumsum()])[np.minimum(partners, k)]
        gains = np.where(self.pair_ranks <= k, 1 / np.log2(self.pair_ranks + 1), 0.0)
        return np.asarray(gains / ideal[self.row_index] * len(gains) / len(partners))

    def coverage(self, k: int) -> float:
        """Return the share of all columns that are among the k nearest of some row."""
        return len(np.unique(self.ranked_columns[:, :k])) / len(self.popularity)

    def hubness(self, k: int) -> float:
        """Return the skewness of how often a column is among the k nearest of a row: 0 without hubs."""
        counts = np.bincount(self.ranked_columns[:, :k].ravel(), minlength=len(self.popularity))
        centered = counts - counts.mean()
        return float((centered**3).mean() / max((centered**2).mean(), 1e-12) ** 1.5)

    def popularity_ratio(self, k: int) -> float:
        """Return the mean number of training pairs of the rows' k nearest columns, relative to that of true partners.

        If there are fewer popular columns than k, even the k most popular ones have a ratio below 1. So compare the
        ratios of different rankings.
        """
        shown = self.popularity[self.ranked_columns[:, :k]].mean()
        return float(shown / np.average(self.popularity, weights=self.popularity))


def rank_links(
    rows: Tensor, columns: Tensor, train_pairs: Tensor, test_pairs: Tensor, *, normalize: bool = True
) -> LinkRanking:
    """Rank all columns for each row of the test pairs by cosine, or by inner product without `normalize`.

    Args:
        rows: embeddings of the rows, (R, d).
        columns: embeddings of the columns, (C, d).
        train_pairs: row and column of each training pair, int64 (n, 2); these columns are left out of the ranking.
        test_pairs: the same of the held-out pairs, (m, 2).
        normalize: whether to scale the embeddings to unit length.

    >>> eye = torch.eye(3)
    >>> ranking = rank_links(eye, eye, torch.tensor([[0, 0]]), torch.tensor([[0, 1], [1, 1]]))
    >>> ranking.recall(1).tolist(), ranking.is_new_row.tolist()
    ([True, True], [False, True])
    """
    if normalize:
        rows, columns = F.normalize(rows.float(), dim=1), F.normalize(columns.float(), dim=1)
    chosen = test_pairs[:, 0].unique()
    place = torch.full((len(rows),), -1)
    place[chosen] = torch.arange(len(chosen))
    length, ranked = min(MAX_RANKED_COLUMNS, len(columns)), []
    for start, part in enumerate(chosen.split(step := _max_rows_at_once(columns))):
        scores, own = rows[part] @ columns.T, place[train_pairs[:, 0]] - start * step
        inside = (own >= 0) & (own < len(part))
        scores[own[inside], train_pairs[inside, 1]] = -torch.inf
        ranked.append(scores.topk(length, dim=1).indices)
    table, row_index = torch.cat(ranked), place[test_pairs[:, 0]]
    is_column = table[row_index] == test_pairs[:, 1:]
    ranks = torch.where(is_column.any(1), is_column.long().argmax(1) + 1.0, torch.inf)
    return LinkRanking(
        row_index.numpy(),
        ranks.numpy(),
        table.numpy(),
        train_pairs[:, 1].bincount(minlength=len(columns)).numpy(),
        (~torch.isin(test_pairs[:, 0], train_pairs[:, 0])).numpy(),
    )
