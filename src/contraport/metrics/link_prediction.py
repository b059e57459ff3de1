"""Link prediction on a coupling: ranks of the held-out columns of each row among all columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

LONGEST = 100
"""Length of the ranked list of columns that is kept for each row."""

_SCORES_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class LinkRanking:
    """Ranked columns of each test row, without the columns that the row was paired with in training.

    Attributes:
        row_index: index of each test pair's row among the ranked rows, (m,).
        pair_ranks: rank of each test pair's column, from 1, (m,); infinity if it is not among those kept.
        ranked: column at each rank, (rows, ranks).
        popularity: number of training pairs of each column, (columns,).
        is_new_row: whether the row of each test pair has no training pair, (m,).
    """

    row_index: np.ndarray[Any, Any]
    pair_ranks: np.ndarray[Any, Any]
    ranked: np.ndarray[Any, Any]
    popularity: np.ndarray[Any, Any]
    is_new_row: np.ndarray[Any, Any]

    def recall(self, k: int) -> np.ndarray[Any, Any]:
        """Return whether each test pair's column is among the k highest of its row, (m,)."""
        return np.asarray(self.pair_ranks <= k)

    def ndcg(self, k: int) -> np.ndarray[Any, Any]:
        """Return values per test pair, (m,), whose mean is the normalized discounted cumulative gain, mean over rows.

        Source: Järvelin and Kekäläinen (2002), Cumulated gain-based evaluation of IR techniques, with binary gains.
        """
        partners = np.bincount(self.row_index)
        ideal = np.concatenate([[0.0], (1 / np.log2(np.arange(2, k + 2))).cumsum()])[np.minimum(partners, k)]
        gains = np.where(self.pair_ranks <= k, 1 / np.log2(self.pair_ranks + 1), 0.0)
        return np.asarray(gains / ideal[self.row_index] * len(gains) / len(partners))

    def coverage(self, k: int) -> float:
        """Return the share of all columns that are among the k highest of some row."""
        return len(np.unique(self.ranked[:, :k])) / len(self.popularity)

    def popularity_ratio(self, k: int) -> float:
        """Return the mean number of training pairs of the k highest columns, relative to that of the true partners.

        If there are fewer popular columns than k, even the k most popular ones have a ratio below 1. So compare the
        ratios of different rankings.
        """
        shown = self.popularity[self.ranked[:, :k]].mean()
        pairs_of_partners = self.popularity * self.popularity
        return float(shown / (pairs_of_partners.sum() / self.popularity.sum()))


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
    length, ranked = min(LONGEST, len(columns)), []
    for start, part in enumerate(chosen.split(step := max(1, _SCORES_AT_ONCE // len(columns)))):
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
