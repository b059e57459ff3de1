"""What people are shown of items: small pictures, the beginnings of texts, vectors as bars and series as lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport._utils.text_tensors import is_text_shape, tensor_to_texts
from contraport.data.dataset import Dataset

LETTERS = 500
"""Of a text so many letters are shown."""

BARS, POINTS, CHANNELS = 96, 160, 6
"""Most numbers of a vector and of a channel of a series, and channels; further numbers become means of neighbours."""

SPREAD = 3
"""Bars and lines reach to so many standard deviations of the data."""

Array = np.ndarray[Any, Any]


def sketches(dataset: Dataset, positions: Tensor, side: int) -> list[Array]:
    """Return of each view what is shown of the items at some positions.

    Images are uint8 ``(m, C, H, W)``, shrunk to a side; texts are strings ``(m,)``; vectors ``(m, n)`` and series
    ``(m, C, T)`` are int8, from -100 to 100, which is three standard deviations of the data.
    """
    fetched = dataset.store.fetch(positions)
    return [_sketched(items, dataset, view, side) for view, items in enumerate(fetched)]


def thumbnails(images: Tensor, side: int) -> Array:
    """Return images `(m, C, H, W)` as uint8, shrunk so that no side is longer than `side`.

    Floats within [0, 1] are shown as they are, others by the range that each channel has among these images.

    >>> thumbnails(torch.tensor([-1000.0, 3000.0]).expand(1, 1, 2, 2), 32).tolist()
    [[[[0, 255], [0, 255]]]]
    """
    if images.is_floating_point():
        low, high = (images.transpose(0, 1).flatten(1).aminmax(dim=1)[end].view(-1, 1, 1) for end in (0, 1))
        if bool((low < 0).any() or (high > 1).any()):
            images = (images - low) / torch.where(high > low, high - low, 1.0)
        images = (images * 255).round().byte()
    height, width = images.shape[2:]
    scale = side / max(height, width)
    if scale >= 1:
        return images.numpy()
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return F.interpolate(images.float(), size=size, mode="area").round().byte().numpy()


def _sketched(items: Tensor, dataset: Dataset, view: int, side: int) -> Array:
    shape = dataset.shapes[view]
    if is_text_shape(shape):
        return np.array(
            [text if len(text) <= LETTERS else f"{text[:LETTERS]} …" for text in tensor_to_texts(items)], np.str_
        )
    if len(shape) == 3:
        return thumbnails(items, side)
    if len(shape) == 2:
        return _hundredths(_standard(items, dataset, view)[:, :CHANNELS], POINTS)
    return _hundredths(_standard(items.flatten(1)[:, None], dataset, view), BARS)[:, 0]


def _standard(items: Tensor, dataset: Dataset, view: int) -> Tensor:
    """Return the values ``(m, C, T)`` in units of the spread of the data, from -1 to 1."""
    mean, std = (torch.tensor(values) for values in dataset.statistics(view))
    shape = (1, 1, -1) if len(dataset.shapes[view]) == 1 else (1, -1, 1)
    return ((items.float() - mean.reshape(shape)) / std.reshape(shape) / SPREAD).clamp(-1, 1)


def _hundredths(values: Tensor, most: int) -> Array:
    """Return values ``(m, C, T)`` in hundredths, at most so many of the last axis, means of neighbours."""
    if values.shape[-1] > most:
        flat = values.reshape(-1, 1, values.shape[-1])
        values = F.adaptive_avg_pool1d(flat, most).reshape(*values.shape[:-1], most)
    found: Array = (100 * values).round().to(torch.int8).numpy()
    return found
