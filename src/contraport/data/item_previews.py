"""Previews of images, texts, vectors and series for report pages."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from contraport._utils.text_bytes import TEXT_SHAPE, tensor_to_texts
from contraport.data.dataset import Dataset

MAX_TEXT_CHARACTERS = 500
"""Maximum number of characters of a text that are shown."""

MAX_SHOWN_FEATURES, MAX_SHOWN_STEPS, MAX_SHOWN_CHANNELS = 96, 160, 6
"""Most values of a vector, most steps and channels of a series; more values or steps are averaged over neighbors."""


def make_item_previews_per_view(dataset: Dataset, positions: Tensor, max_image_side: int) -> list[np.ndarray]:
    """Return previews of the items at given positions, one array per view.

    Images are uint8 ``(m, C, H, W)``, at most `max_image_side` pixels wide and high; texts are strings ``(m,)``;
    vectors ``(m, n)`` and series ``(m, C, T)`` are int8 from -100 to 100, which is three standard deviations.
    """
    previews: list[np.ndarray] = []
    for view, (items, shape) in enumerate(zip(dataset.store.fetch_views(positions), dataset.shapes, strict=True)):
        if shape == TEXT_SHAPE:
            texts = tensor_to_texts(items)
            shown = [text[:MAX_TEXT_CHARACTERS] + (" …" if len(text) > MAX_TEXT_CHARACTERS else "") for text in texts]
            previews.append(np.array(shown, np.str_))
        elif len(shape) == 3:
            previews.append(shrink_to_uint8_nchw(items, max_image_side))
        elif len(shape) == 2:
            previews.append(_standardize_series_to_int8(items, dataset, view, MAX_SHOWN_STEPS)[:, :MAX_SHOWN_CHANNELS])
        else:
            previews.append(_standardize_series_to_int8(items[:, None], dataset, view, MAX_SHOWN_FEATURES)[:, 0])
    return previews


def shrink_to_uint8_nchw(images: Tensor, max_image_side: int) -> NDArray[np.uint8]:
    """Return images as uint8, at most `max_image_side` pixels wide and high.

    Images are ``(m, C, H, W)``. Floats outside [0, 1] are scaled by the range of each channel over these images.

    >>> shrink_to_uint8_nchw(torch.tensor([-1000.0, 3000.0]).expand(1, 1, 2, 2), 32).tolist()
    [[[[0, 255], [0, 255]]]]
    """
    if images.is_floating_point():
        low, high = (end.view(-1, 1, 1) for end in images.transpose(0, 1).flatten(1).aminmax(dim=1))
        if bool((low < 0).any() or (high > 1).any()):
            images = (images - low) / torch.where(high > low, high - low, 1.0)
        images = (images * 255).round().byte()
    height, width = images.shape[2:]
    scale = max_image_side / max(height, width)
    if scale >= 1:
        return images.numpy()
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return F.interpolate(images.float(), size=size, mode="area").round().byte().numpy()


def _standardize_series_to_int8(series: Tensor, dataset: Dataset, view: int, max_steps: int) -> np.ndarray:
    """Standardize and clip series, and scale them to int8 from -100 to 100, ``(m, C, T)``.

    Three standard deviations become 100. Neighboring steps are averaged to at most `max_steps`. The mean and the
    standard deviation are those of a channel, or of a feature if the view is of vectors, which have one channel here.
    """
    mean, std = (torch.tensor(values) for values in dataset.mean_and_std(view))
    shape = (1, 1, -1) if len(dataset.shapes[view]) == 1 else (1, -1, 1)
    values = ((series.float() - mean.reshape(shape)) / std.reshape(shape) / 3).clamp(-1, 1)
    if values.shape[-1] > max_steps:
        flat = values.reshape(-1, 1, values.shape[-1])
        values = F.adaptive_avg_pool1d(flat, max_steps).reshape(*values.shape[:-1], max_steps)
    percent: np.ndarray = (100 * values).round().to(torch.int8).numpy()
    return percent
