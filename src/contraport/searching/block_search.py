"""Features a block at a time: of a million rows in a file no more than some thousand are in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.embedding import check_finite

BLOCK = 16_384

ROUNDING = 1e-6
"""By so much the cosine of equal features may be below 1, and any other off."""


def unit(features: np.ndarray, device: torch.device) -> Tensor:
    """Return features on the unit sphere, ``(b, F)`` float32; a row of zeros stays one.

    Raises:
        UsageError: a feature is not finite.

    >>> unit(np.array([[3.0, 4.0]]), torch.device("cpu"))
    tensor([[0.6000, 0.8000]])
    """
    rows = torch.from_numpy(np.array(features, dtype=np.float32))
    check_finite(rows)
    return F.normalize(rows.to(device), dim=1)


def blocks(features: np.ndarray, device: torch.device) -> Iterator[tuple[int, Tensor]]:
    """Yield the number of the first row of each block, and its rows on the unit sphere."""
    for first in range(0, len(features), BLOCK):
        yield first, unit(features[first : first + BLOCK], device)


def find_most_similar(
    query: Tensor, features: np.ndarray, count: int, *, among: np.ndarray | None = None
) -> tuple[Tensor, Tensor]:
    """Return the largest cosine similarities of a query to rows of features, and where these are, the nearest first.

    Exact: all rows are looked at, a block at a time. Of equal ones the earlier come first.

    Args:
        query: ``(F,)``, on the device that computes.
        features: ``(n, F)``.
        count: how many, at most all.
        among: the only rows to look at, rising; default: all.

    >>> find_most_similar(torch.tensor([1.0, 0.0]), np.array([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]), 2)[1]
    tensor([1, 2])
    """
    query = F.normalize(query.float(), dim=0)
    best, places = query.new_empty(0), torch.empty(0, dtype=torch.int64, device=query.device)
    looked = np.arange(len(features)) if among is None else among
    for first in range(0, len(looked), BLOCK):
        here = looked[first : first + BLOCK]
        best = torch.cat([best, unit(features[here], query.device) @ query])
        places = torch.cat([places, torch.from_numpy(here).to(query.device)])
        kept = best.argsort(descending=True, stable=True)[:count]
        best, places = best[kept], places[kept]
    return best.cpu(), places.cpu()
