"""Noise and mixup: random changes that suit any numeric data."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from contraport.data.views.random_draws import RandomDraws

MAX_MIX = 0.5
NOISE = MAX_MIX * math.sqrt(2 / 3)
"""Default standard deviation of the noise, relative to that of the data; moves an item as far as mixup (RMS)."""


class Noise(nn.Module):
    """Add Gaussian noise to each item.

    Values may leave the range of the data: clipped, the noise would no longer be Gaussian.

    Args:
        std: standard deviation of each channel or feature for scaled noise, or one number for isotropic noise.
        strength: standard deviation of delta, relative to `std`.
    """

    std: Tensor

    def __init__(self, std: Tensor, strength: float = NOISE) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("std", std, persistent=False)

    def forward(self, items: Tensor, draws: RandomDraws) -> Tensor:
        """Return one random view of each item."""
        return items + self.strength * self.std * draws.normal(*items.shape[1:])


def isotropic_std(std: Tensor) -> Tensor:
    """Return one standard deviation for all features, ``()``: the root mean square of those of the features.

    >>> isotropic_std(torch.tensor([3.0, 4.0])).square()
    tensor(12.5000)
    """
    return std.square().mean().sqrt()


class Mixup(nn.Module):
    """Mixup: interpolate each item with a random item of the batch, x_i + lambda (x_j - x_i).

    Args:
        strength: largest lambda, which is uniform between 0 and this.
    """

    def __init__(self, strength: float = MAX_MIX) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, items: Tensor, draws: RandomDraws) -> Tensor:
        """Return one random view of each item."""
        share = draws.uniform(0, self.strength, *[1] * (items.ndim - 1))
        return torch.lerp(items, draws.mixup_partners(items), share)
