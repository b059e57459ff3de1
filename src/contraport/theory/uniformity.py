"""Perfect alignment and uniformity: where the points of the sphere go if nothing but the objective holds them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contraport.catalog.objectives import nt_xent
from contraport.engine import Gibbs, normalize
from contraport.errors import check_integer
from contraport.objectives import Free, LogMeanKernel, Objective, Pairs, WithinView
from contraport.objectives.objective import Loss
from contraport.plots.colors import BLUE, GREY, ORANGE, SERIES
from contraport.plots.figure_setup import heatmap, panels
from contraport.seeding import torch_generator
from contraport.theory.circle import draw_circle, spread, train_circle_encoder
from contraport.theory.descent import minimize_lbfgs
from contraport.theory.toy import Mixture, gaussian_mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class PerfectUniformity:
    """Points of the sphere as far from each other as the uniformity drives them.

    Attributes:
        points: (n, d), of unit length.
        values: the objective at the start and after each iteration.
        least_angle: between any two points, in radians; the Tammes problem asks for the largest.
        deviation: where the best answer is known, the largest difference from it: in d = 2 of the angle between
            neighbours from the regular polygon's 2 pi / n, in radians; with d >= n - 1 of any cosine from the simplex'
            -1 / (n - 1). None elsewhere.
    """

    points: Tensor
    values: Tensor
    least_angle: float
    deviation: float | None

    def figure(self) -> Figure:
        """Draw the points, or where they are not in a plane the way of the objective, and the cosines between them."""
        figure, (left, right) = panels(2)
        points = self.points
        if points.shape[1] == 2:
            points = points[torch.atan2(points[:, 1], points[:, 0]).argsort()]
            draw_circle(left)
            left.scatter(points[:, 0].numpy(), points[:, 1].numpy(), color=BLUE, zorder=3)
        else:
            left.plot(self.values.numpy(), color=BLUE)
            left.set(xlabel="iteration", ylabel="uniformity")
        left.set_title(f"{len(points)} points in {points.shape[1]} dimensions", fontsize="medium")
        heatmap(right, points @ points.T, signed=True)
        right.set_title("cosines", fontsize="medium")
        return figure


def perfect_uniformity(
    items: int, dimensions: int, *, temperature: float | None = None, iterations: int = 500, seed: int = 0
) -> PerfectUniformity:
    """Let free points minimise the uniformity of Wang and Isola: a regular polygon in the plane, a simplex with room.

    Args:
        items: n, at least 2.
        dimensions: d, at least 2.
        temperature: of the kernel exp(-|x - y|^2 / temperature); the lower, the more the closest pairs count. None is
            0.5, and less where so many points share the sphere that their neighbours are nearer than that.
        iterations: of L-BFGS at most.
        seed: of the first points.

    Raises:
        UsageError: a number is out of its range.

    Source: the Tammes problem in Hu et al. (2023), Your contrastive learning is secretly doing stochastic neighbor
    embedding, section 3; that both are optimal for every Gaussian, Cohn and Kumar (2007).

    >>> perfect_uniformity(5, 4).deviation < 1e-4
    True
    """
    check_integer("items", items, 2)
    check_integer("dimensions", dimensions, 2)
    if temperature is None:
        temperature = min(0.5, 20 * items ** (-2 / (dimensions - 1)))
    generator = torch_generator("theory.uniformity", seed)
    free = torch.randn(items, dimensions, generator=generator, dtype=torch.float64).requires_grad_()
    uniformity = Objective(WithinView(), Gibbs("chordal", temperature), Free(), Pairs(), LogMeanKernel())
    values = torch.tensor(list(minimize_lbfgs([free], lambda: uniformity(free), iterations)))
    points = normalize(free.detach())
    cosines = (points @ points.T)[~torch.eye(items, dtype=torch.bool)].clamp(-1, 1)
    deviation = None
    if dimensions == 2:
        deviation = float((_gaps(points) - 2 * math.pi / items).abs().max())
    elif dimensions >= items - 1:
        deviation = float((cosines + 1 / (items - 1)).abs().max())
    return PerfectUniformity(points, values, float(cosines.max().arccos()), deviation)


@dataclass(frozen=True, eq=False)
class FiveGaussians:
    """The toy, embedded on the circle by an encoder that contrastive learning trained.

    Attributes:
        data: the mixture.
        embeddings: of its points, (n, 2), of unit length.
        alignment: mean squared distance of two views on the circle; 0 is perfect.
        uniformity: log mean exp(-2 |z_i - z_j|^2) of the embeddings.
        perfect_uniformity: the same of the regular n-gon, the least that there is.
        untrained_uniformity: the same before training.
    """

    data: Mixture
    embeddings: Tensor
    alignment: float
    uniformity: float
    perfect_uniformity: float
    untrained_uniformity: float

    def figure(self) -> Figure:
        """Draw the data, the embeddings, and the angles of the embeddings against even ones."""
        figure, (left, middle, right) = panels(3)
        colors = [SERIES[int(k) % len(SERIES)] for k in self.data.components]
        left.scatter(self.data.x[:, 0].numpy(), self.data.x[:, 1].numpy(), c=colors, s=8)
        left.set(title="data", aspect="equal")
        draw_circle(middle)
        middle.scatter(self.embeddings[:, 0].numpy(), self.embeddings[:, 1].numpy(), c=colors, s=8, zorder=3)
        middle.set_title("embeddings")
        angles = torch.atan2(self.embeddings[:, 1], self.embeddings[:, 0]).sort().values
        even = torch.linspace(-math.pi, math.pi, len(angles))
        right.plot(even.numpy(), even.numpy(), color=GREY, linestyle="--", label="perfectly even")
        right.plot(even.numpy(), angles.numpy(), color=ORANGE, label="embeddings")
        right.set(title="angles in order", xlabel="radians", ylabel="radians", aspect="equal")
        right.legend(frameon=False, loc="upper left")
        return figure


def five_gaussians(
    objective: Loss | None = None,
    *,
    data: Mixture | None = None,
    noise: float = 0.02,
    iterations: int = 1000,
    seed: int = 0,
) -> FiveGaussians:
    """Train an encoder of the toy onto the circle: SimCLR comes close to perfect alignment and perfect uniformity.

    Args:
        objective: what is minimised; None is NT-Xent at temperature 0.5.
        data: the mixture; None is 250 points of five Gaussians in the plane, sigma 0.1.
        noise: standard deviation of the Gaussian noise that makes a view of a point, in units of the data.
        iterations: of Adam, each over all points with fresh views.
        seed: of the first weights and of the views.

    Raises:
        UsageError: noise is negative.

    Source: Hu et al. (2023), section 3 and figure 2.
    """
    data = data or gaussian_mixture()
    found = train_circle_encoder(objective or nt_xent(), data.x, noise=noise, iterations=iterations, seed=seed)
    angles = torch.arange(len(data.x)) * (2 * math.pi / len(data.x))
    polygon = torch.stack([angles.cos(), angles.sin()], 1)
    perfect = spread(polygon, polygon).uniformity
    return FiveGaussians(data, found.embeddings, *found.after, perfect, found.before.uniformity)


def _gaps(points: Tensor) -> Tensor:
    """Return the angle from each point of the circle to the next, (n,)."""
    angles = torch.atan2(points[:, 1], points[:, 0]).sort().values
    return torch.cat([angles.diff(), angles[:1] + 2 * math.pi - angles[-1:]])
