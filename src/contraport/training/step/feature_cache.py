"""Cached features of frozen encoders: their store, and the random choice of one cached view per item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from contraport.data.stores import Store


@dataclass(frozen=True)
class CachedFeatures(Store):
    """Memory-mapped store of encoder features, of several random views per item and view.

    Args:
        views: features per view, ``(n, draws, F)`` float32.
    """

    views: tuple[np.ndarray, ...]

    @property
    def is_in_memory(self) -> bool:
        return True

    @property
    def digests(self) -> None:
        """Content digests: None, since the dataset itself keeps the digests of its items."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the cached features of one item, one shape per view."""
        return tuple(view.shape[1:] for view in self.views)

    def __len__(self) -> int:
        return len(self.views[0])

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return all cached features of the items at some positions, ``(b, draws, F)`` per view."""
        return tuple(torch.from_numpy(view[positions.numpy()]) for view in self.views)


def draw_cached_views(views: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Select one cached random view per item: features ``(b, draws, F)`` become ``(b, F)``.

    Torch's global generator makes the choice.

    >>> (features,) = draw_cached_views([torch.arange(6.0).view(3, 2, 1)])
    >>> features.shape, (features.flatten() // 2).tolist()
    (torch.Size([3, 1]), [0.0, 1.0, 2.0])
    """
    rows = [torch.arange(len(view), device=view.device) for view in views]
    return tuple(
        view[row, torch.randint(view.shape[1], (len(view),), device=view.device)]
        for view, row in zip(views, rows, strict=True)
    )
