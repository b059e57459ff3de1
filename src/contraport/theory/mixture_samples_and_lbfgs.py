"""Gaussian mixture samples, and minimization by L-BFGS, for the theory studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from contraport.errors import check_integer, check_positive
from contraport.options import keep_deprecated_attributes
from contraport.seeding import torch_generator


@keep_deprecated_attributes(components="component_indices")
class MixtureSample(NamedTuple):
    """Points sampled from a mixture of Gaussians, with the component of each.

    Attributes:
        x: sampled points, (n, d).
        component_indices: component of each point, (n,).
        centers: center of each component, (m, d).
    """

    x: Tensor
    component_indices: Tensor
    centers: Tensor


def sample_gaussians_on_circle(
    items: int = 250, dimensions: int = 2, components: int = 5, sigma: float = 0.1, *, seed: int = 0
) -> MixtureSample:
    """Sample a Gaussian mixture with centers evenly spaced on the unit circle.

    The circle lies in the first two coordinates.

    Args:
        items: n; the components have equally many, up to one.
        dimensions: d, at least 2.
        components: m.
        sigma: standard deviation of each coordinate.
        seed: of the points.

    Raises:
        UsageError: a number is out of range.

    >>> sample_gaussians_on_circle(10).component_indices.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """
    check_integer("components", components)
    check_integer("items", items, components)
    check_integer("dimensions", dimensions, 2)
    check_positive("sigma", sigma)
    angles = torch.arange(components) * (2 * math.pi / components)
    centers = torch.zeros(components, dimensions)
    centers[:, 0], centers[:, 1] = angles.cos(), angles.sin()
    component = torch.arange(items) * components // items
    noise = torch.randn(items, dimensions, generator=torch_generator("theory.mixture", seed))
    return MixtureSample(centers[component] + sigma * noise, component, centers)


def iterate_lbfgs(parameters: list[Tensor], objective: Callable[[], Tensor], iterations: int) -> Iterator[float]:
    """Minimize a function by L-BFGS, yielding its value after each iteration.

    The value at the start comes first. It ends when the parameters stop moving.

    The theorems are about optima, so the tolerances are zero: only the precision of float64 stops it.

    Args:
        parameters: tensors that require a gradient.
        objective: returns the value of the current parameters, a scalar tensor.
        iterations: maximum number.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> values = list(iterate_lbfgs([x], lambda: (x - 1).square().sum(), 20))
    >>> values[0], round(x.item(), 4)
    (4.0, 1.0)
    """
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=1, max_eval=25, tolerance_grad=1e-12, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective()
        loss.backward()
        return loss

    check_integer("iterations", iterations, 0)
    yield objective().item()
    for _ in range(iterations):
        before = [p.detach().clone() for p in parameters]
        optimizer.step(closure)
        yield objective().item()
        if all(torch.equal(p, q) for p, q in zip(parameters, before, strict=True)):
            return
