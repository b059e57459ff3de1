"""Random augmentation of numeric data, such as vectors and time series."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from contraport.data.views.image_views import resample_affine
from contraport.data.views.random_draws import RandomDraws

DEFAULT_MAX_MIXUP_WEIGHT = 0.5
"""Default maximum weight of the other item in mixup."""
DEFAULT_NOISE_STD = DEFAULT_MAX_MIXUP_WEIGHT * math.sqrt(2 / 3)
"""Default standard deviation of the noise, relative to that of the data; moves an item as far as mixup (RMS)."""


@dataclass(frozen=True)
class VectorStrength:
    """Amounts of noise, masking and scaling at one strength of vector augmentation."""

    noise_std: float  # standard deviation, relative to that of each feature
    mask_probability: float  # probability that a feature is replaced by its mean
    max_scaling: float  # largest relative change of the distance from the mean


VECTOR_STRENGTH_BY_NAME = {
    "weak": VectorStrength(noise_std=0.1, mask_probability=0.1, max_scaling=0.1),
    "standard": VectorStrength(noise_std=0.3, mask_probability=0.2, max_scaling=0.2),
    "strong": VectorStrength(noise_std=0.6, mask_probability=0.4, max_scaling=0.4),
}


class VectorAugmentation(nn.Module):
    """Randomly scale, mask and jitter vectors (b, d)."""

    data_mean: Tensor
    data_std: Tensor

    def __init__(self, strength: VectorStrength, data_mean: Tensor, data_std: Tensor) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("data_mean", data_mean, persistent=False)
        self.register_buffer("data_std", data_std, persistent=False)

    def forward(self, vectors: Tensor, draws: RandomDraws) -> Tensor:
        """Return one randomly augmented view of each vector."""
        features = vectors.shape[1]
        scale = draws.uniform(1 - self.strength.max_scaling, 1 + self.strength.max_scaling, 1)
        unmasked = draws.uniform(0, 1, features) >= self.strength.mask_probability
        noise = self.strength.noise_std * self.data_std * draws.normal(features)
        return self.data_mean + (vectors - self.data_mean) * scale * unmasked + noise


@dataclass(frozen=True)
class SeriesStrength:
    """Amounts of noise, cropping and the like at one strength of series augmentation."""

    min_crop_fraction: float  # smallest fraction of the time that a crop retains
    noise_std: float  # standard deviation, relative to that of each channel
    max_scaling: float  # largest relative change of each channel's distance from its mean
    max_masked_fraction: float  # largest fraction of the time in which all channels are replaced by their means


SERIES_STRENGTH_BY_NAME = {
    "weak": SeriesStrength(min_crop_fraction=0.9, noise_std=0.05, max_scaling=0.1, max_masked_fraction=0.1),
    "standard": SeriesStrength(min_crop_fraction=0.7, noise_std=0.1, max_scaling=0.2, max_masked_fraction=0.3),
    "strong": SeriesStrength(min_crop_fraction=0.4, noise_std=0.3, max_scaling=0.4, max_masked_fraction=0.5),
}


class SeriesAugmentation(nn.Module):
    """Randomly crop, stretch, scale, mask and jitter time series (b, C, T)."""

    data_mean: Tensor
    data_std: Tensor

    def __init__(self, strength: SeriesStrength, data_mean: Tensor, data_std: Tensor) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("data_mean", data_mean, persistent=False)
        self.register_buffer("data_std", data_std, persistent=False)

    def forward(self, series: Tensor, draws: RandomDraws) -> Tensor:
        """Return one randomly augmented view of each series."""
        channels, length = series.shape[1:]
        fraction = draws.uniform(self.strength.min_crop_fraction, 1)
        start = (1 - fraction) * draws.uniform(-1, 1)
        zero, one = torch.zeros_like(fraction), torch.ones_like(fraction)
        maps = torch.stack([fraction, zero, start, zero, one, zero], dim=1).view(-1, 2, 3)
        cropped = resample_affine(series.unsqueeze(2), maps, (1, length)).squeeze(2)
        scale = draws.uniform(1 - self.strength.max_scaling, 1 + self.strength.max_scaling, channels, 1)
        unmasked = ~draws.span_mask(self.strength.max_masked_fraction, length)[:, None]
        noise = self.strength.noise_std * self.data_std * draws.normal(channels, length)
        return self.data_mean + (cropped - self.data_mean) * scale * unmasked + noise


def cut_adjacent_windows(series: Tensor, length: int, draws: RandomDraws) -> tuple[Tensor, Tensor]:
    """Cut two adjacent windows ``(b, C, length)`` at a random place."""
    starts = draws.integers(series.shape[2] - 2 * length + 1)
    places = starts[:, None] + torch.arange(2 * length, device=series.device)
    stretch = series.gather(2, places[:, None].expand(-1, series.shape[1], -1))
    return stretch[..., :length], stretch[..., length:]


class Noise(nn.Module):
    """Add Gaussian noise to each item.

    Values may leave the range of the data: clipped, the noise would no longer be Gaussian.

    Args:
        std: standard deviation of each channel or feature for scaled noise, or one number for isotropic noise.
        strength: standard deviation of the noise, relative to `std`.
    """

    std: Tensor

    def __init__(self, std: Tensor, strength: float = DEFAULT_NOISE_STD) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("std", std, persistent=False)

    def forward(self, items: Tensor, draws: RandomDraws) -> Tensor:
        """Return one randomly augmented view of each item."""
        return items + self.strength * self.std * draws.normal(*items.shape[1:])


class Mixup(nn.Module):
    """Mixup with random items of the batch, x_i + lambda (x_j - x_i).

    Args:
        strength: largest lambda, which is uniform between 0 and this.
    """

    def __init__(self, strength: float = DEFAULT_MAX_MIXUP_WEIGHT) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, items: Tensor, draws: RandomDraws) -> Tensor:
        """Return one randomly augmented view of each item."""
        share = draws.uniform(0, self.strength, *[1] * (items.ndim - 1))
        return torch.lerp(items, draws.random_batch_items(items), share)
