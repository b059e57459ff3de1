"""Random views of time series."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from contraport.data.views.images import resample_affine
from contraport.data.views.random_draws import RandomDraws


@dataclass(frozen=True)
class SeriesStrength:
    """Ranges of the random changes of time series."""

    crop: float  # smallest fraction of the time that a crop retains
    noise: float  # standard deviation, relative to that of each channel
    scaling: float  # largest relative change of each channel's distance from its mean
    masked: float  # largest fraction of the time in which all channels are replaced by their means


SERIES = {
    "weak": SeriesStrength(crop=0.9, noise=0.05, scaling=0.1, masked=0.1),
    "standard": SeriesStrength(crop=0.7, noise=0.1, scaling=0.2, masked=0.3),
    "strong": SeriesStrength(crop=0.4, noise=0.3, scaling=0.4, masked=0.5),
}


class SeriesTransform(nn.Module):
    """Crop series (b, C, T) in time and resample to the same length, then scale, mask a span, and jitter."""

    mean: Tensor
    std: Tensor

    def __init__(self, strength: SeriesStrength, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, series: Tensor, draws: RandomDraws) -> Tensor:
        """Return one random view of each series."""
        channels, length = series.shape[1:]
        cropped = _crop(series, self.strength.crop, draws)
        scale = draws.uniform(1 - self.strength.scaling, 1 + self.strength.scaling, channels, 1)
        unmasked = ~draws.span_mask(self.strength.masked, length)[:, None]
        noise = self.strength.noise * self.std * draws.normal(channels, length)
        return self.mean + (cropped - self.mean) * scale * unmasked + noise


def _crop(series: Tensor, least: float, draws: RandomDraws) -> Tensor:
    """Crop a random stretch of each series and resample it to the full length."""
    fraction = draws.uniform(least, 1)
    start = (1 - fraction) * draws.uniform(-1, 1)
    zero, one = torch.zeros_like(fraction), torch.ones_like(fraction)
    maps = torch.stack([fraction, zero, start, zero, one, zero], dim=1).view(-1, 2, 3)
    return resample_affine(series.unsqueeze(2), maps, (1, series.shape[2])).squeeze(2)


class AdjacentWindows(nn.Module):
    """Cut two adjacent windows out of a time series at a random place, ``(b, C, T)`` to two of ``(b, C, length)``.

    Args:
        length: steps of a window.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def forward(self, series: Tensor, draws: RandomDraws) -> tuple[Tensor, Tensor]:
        """Return the earlier and the later window of each series."""
        both = 2 * self.length
        starts = draws.integers(series.shape[2] - both + 1)
        places = starts[:, None] + torch.arange(both, device=series.device)
        stretch = series.gather(2, places[:, None].expand(-1, series.shape[1], -1))
        return stretch[..., : self.length], stretch[..., self.length :]
