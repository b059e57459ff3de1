"""The toy data of the theory of neighbour embedding: a mixture of Gaussians with its centres on a circle."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from contraport.errors import check, check_integer, check_positive
from contraport.seeding import torch_generator


class Mixture(NamedTuple):
    """Points of a mixture of Gaussians: x (n, d), the component of each (n,), the centres (m, d)."""

    x: Tensor
    components: Tensor
    centers: Tensor


def gaussian_mixture(
    items: int = 250, dimensions: int = 2, components: int = 5, sigma: float = 0.1, *, seed: int = 0
) -> Mixture:
    """Return points about centres that are spread evenly over the unit circle of the first two coordinates.

    Args:
        items: n, as many for each component as for any other, give or take one.
        dimensions: d, at least 2.
        components: m.
        sigma: standard deviation of each coordinate.
        seed: of the points.

    Raises:
        UsageError: a number is out of its range.

    >>> gaussian_mixture(10).components.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """
    check(items >= components >= 1, f"items: expected at least one per component ({components}), got {items!r}.")
    check_integer("dimensions", dimensions, 2)
    check_positive("sigma", sigma)
    angles = torch.arange(components) * (2 * math.pi / components)
    centers = torch.zeros(components, dimensions)
    centers[:, 0], centers[:, 1] = angles.cos(), angles.sin()
    component = torch.arange(items) * components // items
    noise = torch.randn(items, dimensions, generator=torch_generator("theory.mixture", seed))
    return Mixture(centers[component] + sigma * noise, component, centers)
