"""Features of random views, which a frozen encoder computes once and which are kept, and how one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class CachedFeatures:
    """The features of several random draws of each view of some items, read from their files when they are fetched.

    Args:
        views: ``(n, draws, F)`` float32 each.
    """

    views: tuple[np.ndarray, ...]
    in_memory: bool = True
    digests: None = None  # those of the items stand, which the dataset has

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return tuple(view.shape[1:] for view in self.views)

    def __len__(self) -> int:
        return len(self.views[0])

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the features of all draws at some positions, ``(b, draws, F)`` each."""
        return tuple(torch.from_numpy(view[positions.numpy()]) for view in self.views)


def draw_cached_views(views: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the features ``(b, F)`` of one draw of each view and item, each by itself, of all, ``(b, draws, F)``.

    The random numbers are torch's own.

    >>> (features,) = draw_cached_views([torch.arange(6.0).view(3, 2, 1)])
    >>> features.shape, (features.flatten() // 2).tolist()
    (torch.Size([3, 1]), [0.0, 1.0, 2.0])
    """
    return tuple(_one_each(view) for view in views)


def _one_each(view: Tensor) -> Tensor:
    items, draws = view.shape[:2]
    each = torch.arange(items, device=view.device)
    return view[each, torch.randint(draws, (items,), device=view.device)]
