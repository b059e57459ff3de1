"""Features of random views, which a frozen encoder computes once: where they are kept, and how one is drawn.

A folder of them is `view0.npy`, `view1.npy` and so on, arrays ``(n, draws, F)`` float32 in the order of the items, and
`made_of.json`, which tells of what and by which weights they were made, and is written last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

MADE_OF = "made_of.json"


@dataclass(frozen=True)
class KeptFeatures:
    """The features of several random draws of each view of some items, read from their files when they are fetched.

    Args:
        views: ``(n, draws, F)`` float32 each.
    """

    views: tuple[np.ndarray, ...]
    in_memory: bool = True

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return tuple(view.shape[1:] for view in self.views)

    def __len__(self) -> int:
        return len(self.views[0])

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the features of all draws at some positions, ``(b, draws, F)`` each."""
        return tuple(torch.from_numpy(view[positions.numpy()]) for view in self.views)


def one_draw(views: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the features ``(b, F)`` of one draw of each view and item, each by itself, of all, ``(b, draws, F)``.

    The random numbers are torch's own.

    >>> (features,) = one_draw([torch.arange(6.0).view(3, 2, 1)])
    >>> features.shape, (features.flatten() // 2).tolist()
    (torch.Size([3, 1]), [0.0, 1.0, 2.0])
    """
    return tuple(_one_each(view) for view in views)


def _one_each(view: Tensor) -> Tensor:
    items, draws = view.shape[:2]
    each = torch.arange(items, device=view.device)
    return view[each, torch.randint(draws, (items,), device=view.device)]


def path_of(folder: Path, view: int) -> Path:
    """Return where the features of a view are."""
    return folder / f"view{view}.npy"


def opened(folder: Path, made_of: Mapping[str, Any]) -> tuple[KeptFeatures | None, str]:
    """Return what a folder keeps where it was made of this, or else why it is of no use, where it keeps something.

    Args:
        folder: where they are.
        made_of: what they have to be made of, as JSON has it; its ``shapes`` are those of the arrays.
    """
    told = folder / MADE_OF
    if not told.exists():
        return None, ""
    try:
        kept = json.loads(told.read_text("utf-8"))
        differing = [name for name in made_of if kept.get(name) != made_of[name]]
        if differing:
            return None, f"they are of other {' and '.join(differing)}"
        views = tuple(np.load(path_of(folder, view), mmap_mode="r") for view in range(len(made_of["shapes"])))
        good = all(
            list(view.shape) == shape and view.dtype == np.float32
            for view, shape in zip(views, made_of["shapes"], strict=True)
        )
    except (OSError, ValueError, TypeError, AttributeError, EOFError):
        return None, "they are damaged"
    return (KeptFeatures(views), "") if good else (None, "they are damaged")
