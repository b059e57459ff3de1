"""Statistics of each channel (mean, standard deviation, range), computed over blocks of items."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def compute_mean_and_std(blocks: Iterable[Tensor]) -> tuple[list[float], list[float]]:
    """Compute the mean and the standard deviation of each channel over blocks ``(b, channels, ...)``.

    uint8 stands for [0, 1]. A constant channel has standard deviation 1.

    >>> compute_mean_and_std([torch.tensor([[1.0, 5.0]]), torch.tensor([[3.0, 5.0]])])
    ([2.0, 5.0], [1.0, 1.0])
    """
    shift: Tensor | float = 0.0
    total: Tensor | float = 0.0
    square: Tensor | float = 0.0
    count = 0
    for number, items in enumerate(blocks):
        values = _by_channel(items.double().div_(255.0 if items.dtype == torch.uint8 else 1.0))
        if number == 0:
            shift = values.mean(dim=1, keepdim=True)  # squares about a nearby mean lose no digits
        values = values - shift
        total, square, count = total + values.sum(1), square + values.square().sum(1), count + values.shape[1]
    offset, square = torch.as_tensor(total) / count, torch.as_tensor(square) / count
    mean = offset + torch.as_tensor(shift).flatten()
    std = (square - offset.square()).clamp(min=0).sqrt()
    std = torch.where(std <= 1e-7 * mean.abs(), 1.0, std)  # variation by float32 rounding alone counts as constant
    return mean.tolist(), std.tolist()


def channel_range(blocks: Iterable[Tensor]) -> tuple[list[float], list[float]] | None:
    """Compute the minimum and maximum of each channel, or return None if all values are within [0, 1].

    The maximum of a constant channel is its value plus 1.

    >>> channel_range([torch.tensor([[0.0, 7.0]]), torch.tensor([[4.0, 7.0]])])
    ([0.0, 7.0], [4.0, 8.0])
    """
    extremes = [(values.amin(1), values.amax(1)) for values in map(_by_channel, blocks)]
    lows, highs = (torch.stack(each) for each in zip(*extremes, strict=True))
    low, high = lows.amin(0), highs.amax(0)
    if bool((low >= 0).all() and (high <= 1).all()):
        return None
    return low.tolist(), torch.where(high > low, high, low + 1).tolist()


def _by_channel(items: Tensor) -> Tensor:
    return items.transpose(0, 1).flatten(1)  # (channels, values)
