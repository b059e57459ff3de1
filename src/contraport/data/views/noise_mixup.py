"""Noise and mixup: two random changes that need to know nothing of what the items are."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from contraport.data.views.draws import Draws

LARGEST_MIX = 0.5
NOISE = LARGEST_MIX * math.sqrt(2 / 3)
"""Standard deviation of the noise, in units of the data's own: it moves an item as far, root mean square, as mixup."""


class Noise(nn.Module):
    """Add Gaussian noise, x + delta, in units of a standard deviation.

    The values may leave the range of the data: cut off, the noise would no longer be Gaussian.

    Args:
        std: of each channel or feature, for noise that is scaled by it, or one number, for isotropic noise.
        strength: the standard deviation of delta, in units of that.
    """

    std: Tensor

    def __init__(self, std: Tensor, strength: float = NOISE) -> None:
        super().__init__()
        self.strength = strength
        self.register_buffer("std", std, persistent=False)

    def forward(self, items: Tensor, draws: Draws) -> Tensor:
        """Return one random view of each item."""
        return items + self.strength * self.std * draws.normal(*items.shape[1:])


def isotropic(std: Tensor) -> Tensor:
    """Return the one deviation, ``()``, under which noise moves an item as far as under those of its features.

    >>> isotropic(torch.tensor([3.0, 4.0])).square()
    tensor(12.5000)
    """
    return std.square().mean().sqrt()


class Mixup(nn.Module):
    """Move each item towards another of the batch, x_i + lambda (x_j - x_i).

    Args:
        strength: the largest lambda, the share of the way; it is drawn between 0 and this.
    """

    def __init__(self, strength: float = LARGEST_MIX) -> None:
        super().__init__()
        self.strength = strength

    def forward(self, items: Tensor, draws: Draws) -> Tensor:
        """Return one random view of each item."""
        share = draws.uniform(0, self.strength, *[1] * (items.ndim - 1))
        return torch.lerp(items, draws.partners(items), share)
