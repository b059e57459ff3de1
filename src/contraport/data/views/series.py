"""Random views of time series."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from contraport.data.views.draws import Draws
from contraport.data.views.resampling import resample


@dataclass(frozen=True)
class SeriesStrength:
    """How far the views of a time series may differ: ranges of the random changes."""

    kept: float  # smallest share of the time that a crop keeps
    noise: float  # standard deviation, in units of each channel's own
    scaling: float  # largest relative change of each channel's distance from its mean
    masked: float  # largest share of the time in which all channels are replaced by their means


SERIES = {
    "weak": SeriesStrength(kept=0.9, noise=0.05, scaling=0.1, masked=0.1),
    "standard": SeriesStrength(kept=0.7, noise=0.1, scaling=0.2, masked=0.3),
    "strong": SeriesStrength(kept=0.4, noise=0.3, scaling=0.4, masked=0.5),
}


class SeriesTransform(nn.Module):
    """Crop in time and resample to the same length, then scale, mask a span of, and jitter series (b, C, T)."""

    mean: Tensor
    std: Tensor

    def __init__(self, strength: SeriesStrength, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    def forward(self, series: Tensor, draws: Draws) -> Tensor:
        """Return one random view of each series."""
        channels, length = series.shape[1:]
        cropped = _crop(series, self.strength.kept, draws)
        scale = draws.uniform(1 - self.strength.scaling, 1 + self.strength.scaling, channels, 1)
        kept = ~draws.span(self.strength.masked, length)[:, None]
        noise = self.strength.noise * self.std * draws.normal(channels, length)
        return self.mean + (cropped - self.mean) * scale * kept + noise


def _crop(series: Tensor, least: float, draws: Draws) -> Tensor:
    """Resample a random stretch of each series, as a picture of one row."""
    share = draws.uniform(least, 1)
    start = (1 - share) * draws.uniform(-1, 1)
    zero, one = torch.zeros_like(share), torch.ones_like(share)
    maps = torch.stack([share, zero, start, zero, one, zero], dim=1).view(-1, 2, 3)
    return resample(series.unsqueeze(2), maps, (1, series.shape[2])).squeeze(2)
