"""Link prediction by ranking column items, such as products, for each row item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport.errors import check, check_all_values, type_and_shape
from contraport.metrics.retrieval_ranks import (
    MAX_COSINES_IN_MEMORY,
    check_equal_widths,
    check_points,
    is_dense_real_tensor,
    unit_vectors,
)
from contraport.options import keep_deprecated_attributes

MAX_NEAREST_COLUMNS_KEPT_PER_ROW = 100
"""Maximum number of nearest columns that a `ColumnRanking` holds for each row."""


@keep_deprecated_attributes(popularity_ratio="nearest_to_paired_popularity_ratio")
@dataclass(frozen=True)
class ColumnRanking:
    """Ranking of the column items for each row item that has a test pair.

    Attributes:
        pair_row_positions: position of each test pair's row in `ranked_columns`, (m,).
        pair_ranks: rank of each test pair's column, from 1, (m,); infinity if it is not among `ranked_columns`.
        ranked_columns: column at each rank, (rows, ranks); -1 beyond the last column that is not left out.
        column_popularity: number of training pairs of each column, (columns,).
        pair_has_unseen_row: whether the row of each test pair has no training pair, (m,).
    """

    pair_row_positions: np.ndarray[Any, Any]
    pair_ranks: np.ndarray[Any, Any]
    ranked_columns: np.ndarray[Any, Any]
    column_popularity: np.ndarray[Any, Any]
    pair_has_unseen_row: np.ndarray[Any, Any]

    def pair_hits_at(self, k: int) -> np.ndarray[Any, Any]:
        """Return whether each test pair's column is among its row's k nearest, (m,)."""
        self._check_depth(k)
        return np.asarray(self.pair_ranks <= k)

    def pair_recall_row_pseudovalues_at(self, k: int) -> np.ndarray[Any, Any]:
        """Return a value per row, (rows,), such that the mean is recall@k of all test pairs.

        The recall is a ratio of sums over rows, hits by pairs, and a value is a row's effect on it to first order. A
        bootstrap of these values resamples rows with all their pairs: the pairs of one row are not independent.
        """
        hits, pairs_per_row = self.pair_hits_at(k), np.bincount(self.pair_row_positions)
        hits_per_row = np.bincount(self.pair_row_positions, weights=hits)
        return np.asarray(hits.mean() + (hits_per_row - hits.mean() * pairs_per_row) / pairs_per_row.mean())

    def row_ndcg_at(self, k: int) -> np.ndarray[Any, Any]:
        """Return the NDCG@k of each row, (rows,).

        Source: Järvelin and Kekäläinen (2002), Cumulated gain-based evaluation of IR techniques, with binary gains.
        """
        partners = np.bincount(self.pair_row_positions)
        ideal = np.concatenate([[0.0], (1 / np.log2(np.arange(2, k + 2))).cumsum()])[np.minimum(partners, k)]
        gains = np.where(self.pair_hits_at(k), 1 / np.log2(self.pair_ranks + 1), 0.0)
        return np.asarray(np.bincount(self.pair_row_positions, weights=gains) / ideal)

    def share_of_columns_in_any_top_k(self, k: int) -> float:
        """Return the share of columns that are among some row's k nearest."""
        return len(np.unique(self._flat_nearest_columns(k))) / len(self.column_popularity)

    def column_hubness(self, k: int) -> float:
        """Return the hubness, the skewness of the columns' k-nearest-neighbor counts."""
        counts = np.bincount(self._flat_nearest_columns(k), minlength=len(self.column_popularity))
        centered = counts - counts.mean()
        return float((centered**3).mean() / max((centered**2).mean(), 1e-12) ** 1.5)

    def nearest_to_paired_popularity_ratio(self, k: int) -> float:
        """Return how popular the k nearest columns are, relative to those of training pairs.

        The popularity of a column is its number of training pairs. A column counts once for each row that ranks it, or
        for each training pair. If there are fewer popular columns than k, even the k most popular ones have a ratio
        below 1. So compare the ratios of different rankings.
        """
        shown = self.column_popularity[self._flat_nearest_columns(k)].mean()
        return float(shown / np.average(self.column_popularity, weights=self.column_popularity))

    def _flat_nearest_columns(self, k: int) -> np.ndarray[tuple[int], Any]:
        """Return the indices of all rows' k nearest columns, as one flat array."""
        self._check_depth(k)
        nearest = self.ranked_columns[:, :k]
        return np.asarray(nearest[nearest >= 0])

    def _check_depth(self, k: int) -> None:
        """Raise `UsageError` if k exceeds the number of ranked columns."""
        depth = self.ranked_columns.shape[1]
        message = f"metrics: the number of a link metric must be at most {depth}, got {k}."
        check(k <= depth or depth == len(self.column_popularity), message, "number")


def rank_columns(
    rows: Tensor, columns: Tensor, train_pairs: Tensor, test_pairs: Tensor, *, normalize: bool = True
) -> ColumnRanking:
    """Rank all columns for each row that has a test pair.

    Args:
        rows: embeddings of the rows, (R, d).
        columns: embeddings of the columns, (C, d).
        train_pairs: row and column of each training pair, int64 (n, 2); these columns are left out of the ranking.
        test_pairs: the same of the held-out pairs, (m, 2).
        normalize: whether to scale the embeddings to unit length.

    Raises:
        UsageError: shapes disagree, an embedding is not finite, or a pair is out of range.

    >>> eye = torch.eye(3)
    >>> ranking = rank_columns(eye, eye, torch.tensor([[0, 0]]), torch.tensor([[0, 1], [1, 1]]))
    >>> ranking.pair_hits_at(1).tolist(), ranking.pair_has_unseen_row.tolist()
    ([True, True], [False, True])
    """
    if normalize:
        rows, columns = unit_vectors("rows", rows), unit_vectors("columns", columns)
    else:
        check_points("rows", rows)
        check_points("columns", columns)
    check_equal_widths("columns", columns, "rows", rows)
    for name, pairs in (("train_pairs", train_pairs), ("test_pairs", test_pairs)):
        good = is_dense_real_tensor(pairs) and pairs.ndim == 2 and pairs.shape[1] == 2 and pairs.dtype == torch.int64
        check(good, f"{name}: must be int64, (n, 2), got {type_and_shape(pairs)}.", "shape")
        is_inside = (pairs >= 0) & (pairs < torch.tensor([len(rows), len(columns)]))
        check_all_values(name, pairs, is_inside, f"positions of {len(rows)} rows and {len(columns)} columns")
    chosen = test_pairs[:, 0].unique()
    place = torch.full((len(rows),), -1)
    place[chosen] = torch.arange(len(chosen))
    length, ranked = min(MAX_NEAREST_COLUMNS_KEPT_PER_ROW, len(columns)), []
    for start, part in enumerate(chosen.split(step := max(1, MAX_COSINES_IN_MEMORY // len(columns)))):
        scores, own = rows[part] @ columns.T, place[train_pairs[:, 0]] - start * step
        inside = (own >= 0) & (own < len(part))
        is_left_out = torch.zeros(scores.shape, dtype=torch.bool)
        is_left_out[own[inside], train_pairs[inside, 1]] = True
        nearest = scores.masked_fill_(is_left_out, -torch.inf).topk(length, dim=1).indices
        ranked.append(nearest.masked_fill(is_left_out.gather(1, nearest), -1))
    table, pair_row_positions = torch.cat(ranked), place[test_pairs[:, 0]]
    is_column = table[pair_row_positions] == test_pairs[:, 1:]
    ranks = torch.where(is_column.any(1), is_column.long().argmax(1) + 1.0, torch.inf)
    return ColumnRanking(
        pair_row_positions.numpy(),
        ranks.numpy(),
        table.numpy(),
        train_pairs[:, 1].bincount(minlength=len(columns)).numpy(),
        (~torch.isin(test_pairs[:, 0], train_pairs[:, 0])).numpy(),
    )
