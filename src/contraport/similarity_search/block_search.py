"""Exact nearest-neighbor search by cosine similarity, in blocks of rows so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.embedding import check_finite

BLOCK = 16_384
"""Rows in memory at a time; the features themselves may be a memory-mapped file."""

ROUNDING = 1e-6
"""Rounding error of a cosine in float32: equal features may have a cosine this much below 1."""


def normalize_rows(features: np.ndarray, device: torch.device) -> Tensor:
    """Scale rows of features to unit length, ``(b, F)`` float32; rows of zeros stay zero.

    Raises:
        UsageError: a feature is not finite.

    >>> normalize_rows(np.array([[3.0, 4.0]]), torch.device("cpu"))
    tensor([[0.6000, 0.8000]])
    """
    rows = torch.from_numpy(np.array(features, dtype=np.float32))
    check_finite(rows)
    return F.normalize(rows.to(device), dim=1)


def iterate_normalized_blocks(features: np.ndarray, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of rows scaled to unit length, each with the index of its first row."""
    for first in range(0, len(features), BLOCK):
        yield first, normalize_rows(features[first : first + BLOCK], device)


def find_most_similar(
    query: Tensor, features: np.ndarray, count: int, *, candidates: np.ndarray | None = None
) -> tuple[Tensor, Tensor]:
    """Return the largest cosine similarities between a query and rows, and the indices of these rows.

    The search is exact. The nearest row comes first; of equal similarities, the earlier row.

    Args:
        query: ``(F,)``, on the device that computes.
        features: ``(n, F)``.
        count: number of rows to return, at most all.
        candidates: sorted indices of the only rows to search; default: all.

    >>> find_most_similar(torch.tensor([1.0, 0.0]), np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]), 2)[1]
    tensor([1, 2])
    """
    query = F.normalize(query.float(), dim=0)
    best, places = query.new_empty(0), torch.empty(0, dtype=torch.int64, device=query.device)
    rows = np.arange(len(features)) if candidates is None else candidates
    for first in range(0, len(rows), BLOCK):
        block = rows[first : first + BLOCK]
        best = torch.cat([best, normalize_rows(features[block], query.device) @ query])
        places = torch.cat([places, torch.from_numpy(block).to(query.device)])
        order = best.argsort(descending=True, stable=True)[:count]
        best, places = best[order], places[order]
    return best.cpu(), places.cpu()
