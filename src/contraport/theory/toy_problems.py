"""Toy problems of the theory studies: a Gaussian mixture, an encoder onto the circle, and L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.catalog.objectives import align_uniform
from contraport.errors import check, check_integer, check_nonnegative, check_positive
from contraport.objectives.objective import Loss
from contraport.options import keep_deprecated_attributes
from contraport.plots.colors import GREY
from contraport.seeding import derive_torch_seed, seed_torch_generators, torch_generator

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@keep_deprecated_attributes(components="component_indices")
class Mixture(NamedTuple):
    """Sample of points from a mixture of Gaussians.

    Attributes:
        x: sampled points, (n, d).
        component_indices: component of each point, (n,).
        centers: center of each component, (m, d).
    """

    x: Tensor
    component_indices: Tensor
    centers: Tensor


def gaussian_mixture(
    items: int = 250, dimensions: int = 2, components: int = 5, sigma: float = 0.1, *, seed: int = 0
) -> Mixture:
    """Sample a Gaussian mixture whose centers lie evenly on the unit circle of the first two coordinates.

    Args:
        items: n; the components have equally many, up to one.
        dimensions: d, at least 2.
        components: m.
        sigma: standard deviation of each coordinate.
        seed: of the points.

    Raises:
        UsageError: a number is out of range.

    >>> gaussian_mixture(10).component_indices.tolist()
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """
    check(items >= components >= 1, f"items: must be at least the number of components ({components}), got {items!r}.")
    check_integer("dimensions", dimensions, 2)
    check_positive("sigma", sigma)
    angles = torch.arange(components) * (2 * math.pi / components)
    centers = torch.zeros(components, dimensions)
    centers[:, 0], centers[:, 1] = angles.cos(), angles.sin()
    component = torch.arange(items) * components // items
    noise = torch.randn(items, dimensions, generator=torch_generator("theory.mixture", seed))
    return Mixture(centers[component] + sigma * noise, component, centers)


class AlignmentUniformity(NamedTuple):
    """Alignment and uniformity of embeddings of two views (Wang and Isola, 2020).

    Attributes:
        alignment: mean squared distance between the two views of an item; 0 is perfect.
        uniformity: log mean exp(-2 |z_i - z_j|^2) over the embeddings of one view; lower is more even.
    """

    alignment: float
    uniformity: float


def measure_alignment_uniformity(z0: Tensor, z1: Tensor) -> AlignmentUniformity:
    """Measure alignment and uniformity of the embeddings of two views, (n, d) each.

    >>> measure_alignment_uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    AlignmentUniformity(alignment=2.0, uniformity=-8.0)
    """
    terms = align_uniform().terms(z0, z1)
    return AlignmentUniformity(terms["TargetCost"], terms["LogMeanKernel"])


class CircleEncoding(NamedTuple):
    """Embeddings of items on the unit circle by a trained encoder.

    Attributes:
        clean_embeddings: embeddings of the clean items, (n, 2), unit length.
        view_embeddings: embeddings of two noisy views, (n, 2) each, not normalized.
        untrained_metrics: alignment and uniformity before training.
        trained_metrics: alignment and uniformity after training.
    """

    clean_embeddings: Tensor
    view_embeddings: tuple[Tensor, Tensor]
    untrained_metrics: AlignmentUniformity
    trained_metrics: AlignmentUniformity


@torch.random.fork_rng(devices=[])
def train_circle_encoder(loss: Loss, x: Tensor, *, noise: float, iterations: int, seed: int) -> CircleEncoding:
    """Train an encoder that maps items to the unit circle, from two noisy views of each item.

    Args:
        loss: the loss to minimize.
        x: the items, (n, d).
        noise: standard deviation of the Gaussian noise that makes a view, in units of the data.
        iterations: steps of Adam, each over all items with fresh views.
        seed: of the initial weights and the views.

    Raises:
        UsageError: noise is negative.
    """
    check_nonnegative("noise", noise)
    seed_torch_generators(derive_torch_seed("theory.circle", seed))
    encoder = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))

    def views() -> tuple[Tensor, Tensor]:
        return encoder(x + noise * torch.randn_like(x)), encoder(x + noise * torch.randn_like(x))

    with torch.no_grad():
        before = measure_alignment_uniformity(*views())
    optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
    for _ in range(iterations):
        optimizer.zero_grad()
        loss(*views()).backward()
        optimizer.step()
    with torch.no_grad():
        final = views()
        return CircleEncoding(F.normalize(encoder(x)), final, before, measure_alignment_uniformity(*final))


def plot_unit_circle(ax: Axes) -> None:
    """Draw the unit circle into some axes."""
    angles = torch.linspace(0, 2 * torch.pi, 200)
    ax.plot(angles.cos().numpy(), angles.sin().numpy(), color=GREY, linewidth=0.8)
    ax.set(aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])


def iterate_lbfgs(parameters: list[Tensor], objective: Callable[[], Tensor], iterations: int) -> Iterator[float]:
    """Minimize a function by L-BFGS and yield its value at the start and after each iteration.

    It ends when the parameters stop moving.

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

    yield objective().item()
    for _ in range(iterations):
        before = [p.detach().clone() for p in parameters]
        optimizer.step(closure)
        yield objective().item()
        if all(torch.equal(p, q) for p, q in zip(parameters, before, strict=True)):
            return
