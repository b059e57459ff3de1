"""Thumbnails of items for report pages: small images, beginnings of texts, vectors and curves."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport._utils.text_bytes import is_text_shape, tensor_to_texts
from contraport.data.dataset import Dataset

MAX_TEXT_CHARACTERS = 500
"""Maximum number of characters of a text that are shown."""

MAX_SHOWN_FEATURES, MAX_SHOWN_STEPS, MAX_SHOWN_CHANNELS = 96, 160, 6
"""Most values of a vector, most steps and channels of a series; more values or steps are averaged over neighbors."""

MAX_SHOWN_STANDARD_DEVIATIONS = 3
"""Number of standard deviations of the data at which shown values are clipped."""


def make_thumbnails(dataset: Dataset, positions: Tensor, side: int) -> list[np.ndarray]:
    """Return thumbnails of each view of the items at some positions.

    Images are uint8 ``(m, C, H, W)``, at most `side` pixels wide and high; texts are strings ``(m,)``; vectors
    ``(m, n)`` and series ``(m, C, T)`` are int8 from -100 to 100, which is three standard deviations of the data.
    """
    views = dataset.store.fetch_views(positions)
    return [_make_view_thumbnails(items, dataset, view, side) for view, items in enumerate(views)]


def shrink_images(images: Tensor, side: int) -> np.ndarray:
    """Return images `(m, C, H, W)` as uint8, at most `side` pixels wide and high.

    Floats outside [0, 1] are scaled by the range of each channel over these images.

    >>> shrink_images(torch.tensor([-1000.0, 3000.0]).expand(1, 1, 2, 2), 32).tolist()
    [[[[0, 255], [0, 255]]]]
    """
    if images.is_floating_point():
        low, high = (end.view(-1, 1, 1) for end in images.transpose(0, 1).flatten(1).aminmax(dim=1))
        if bool((low < 0).any() or (high > 1).any()):
            images = (images - low) / torch.where(high > low, high - low, 1.0)
        images = (images * 255).round().byte()
    height, width = images.shape[2:]
    scale = side / max(height, width)
    if scale >= 1:
        return images.numpy()
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return F.interpolate(images.float(), size=size, mode="area").round().byte().numpy()


def _make_view_thumbnails(items: Tensor, dataset: Dataset, view: int, side: int) -> np.ndarray:
    """Return the thumbnails of one view of some items."""
    shape = dataset.shapes[view]
    if is_text_shape(shape):
        texts = tensor_to_texts(items)
        shown = [text[:MAX_TEXT_CHARACTERS] + (" …" if len(text) > MAX_TEXT_CHARACTERS else "") for text in texts]
        return np.array(shown, np.str_)
    if len(shape) == 3:
        return shrink_images(items, side)
    if len(shape) == 2:
        series = _standardize_and_clip(items, dataset, view)[:, :MAX_SHOWN_CHANNELS]
        return _to_averaged_hundredths(series, MAX_SHOWN_STEPS)
    vectors = _standardize_and_clip(items[:, None], dataset, view)
    return _to_averaged_hundredths(vectors, MAX_SHOWN_FEATURES)[:, 0]


def _standardize_and_clip(items: Tensor, dataset: Dataset, view: int) -> Tensor:
    """Standardize values ``(m, C, T)``, and scale and clip -3 to 3 standard deviations to [-1, 1]."""
    mean, std = (torch.tensor(values) for values in dataset.mean_and_std(view))
    shape = (1, 1, -1) if len(dataset.shapes[view]) == 1 else (1, -1, 1)
    return ((items.float() - mean.reshape(shape)) / std.reshape(shape) / MAX_SHOWN_STANDARD_DEVIATIONS).clamp(-1, 1)


def _to_averaged_hundredths(values: Tensor, max_steps: int) -> np.ndarray:
    """Convert values ``(m, C, T)`` to int8 hundredths; the last axis is averaged to at most `max_steps` values."""
    if values.shape[-1] > max_steps:
        flat = values.reshape(-1, 1, values.shape[-1])
        values = F.adaptive_avg_pool1d(flat, max_steps).reshape(*values.shape[:-1], max_steps)
    percent: np.ndarray = (100 * values).round().to(torch.int8).numpy()
    return percent
