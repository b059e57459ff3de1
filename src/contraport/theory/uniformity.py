"""Perfect uniformity of free points on the sphere, compared with a trained encoder."""

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
from contraport.options import keep_deprecated_attributes
from contraport.plots.colors import BLUE, GREY, ORANGE, SERIES
from contraport.plots.figure_setup import create_panels, draw_heatmap
from contraport.seeding import torch_generator
from contraport.theory.toy_problems import (
    Mixture,
    gaussian_mixture,
    iterate_lbfgs,
    measure_alignment_uniformity,
    plot_unit_circle,
    train_circle_encoder,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(uniformities="uniformity_by_iteration", values="uniformity_by_iteration")
@dataclass(frozen=True, eq=False)
class UniformPoints:
    """Free points on the unit sphere that minimize the uniformity loss of Wang and Isola.

    Attributes:
        points: positions of the points, (n, d), unit length.
        uniformity_by_iteration: uniformity at the start and after each iteration of L-BFGS, (iterations + 1,).
        least_angle: smallest angle between two points, in radians, which the Tammes problem maximizes.
        deviation: largest deviation from the known optimum; None if none is known. For d = 2 an angle between neighbors
            is compared with 2 pi / n, in radians; for d >= n - 1 a cosine is compared with -1 / (n - 1).
    """

    points: Tensor
    uniformity_by_iteration: Tensor
    least_angle: float
    deviation: float | None

    def figure(self) -> Figure:
        """Draw the points, or for d > 2 the uniformity over the iterations, and the cosines between points."""
        figure, (left, right) = create_panels(2)
        points = self.points
        if points.shape[1] == 2:
            points = points[torch.atan2(points[:, 1], points[:, 0]).argsort()]
            plot_unit_circle(left)
            left.scatter(points[:, 0].numpy(), points[:, 1].numpy(), color=BLUE, zorder=3)
        else:
            left.plot(self.uniformity_by_iteration.numpy(), color=BLUE)
            left.set(xlabel="iteration", ylabel="uniformity")
        left.set_title(f"{len(points)} points in {points.shape[1]} dimensions", fontsize="medium")
        draw_heatmap(right, points @ points.T, signed=True)
        right.set_title("cosines", fontsize="medium")
        return figure


def minimize_uniformity_loss(
    items: int, dimensions: int, *, temperature: float | None = None, iterations: int = 500, seed: int = 0
) -> UniformPoints:
    """Minimize the uniformity loss of Wang and Isola over free points on the sphere.

    The optimum is a regular polygon for d = 2 and a simplex for d >= n - 1.

    Args:
        items: n, at least 2.
        dimensions: d, at least 2.
        temperature: of the kernel exp(-|x - y|^2 / temperature); a lower one weighs the closest pairs more. None: 0.5,
            or less where the points are so many that neighbors are closer than that.
        iterations: maximum number, of L-BFGS.
        seed: of the initial points.

    Raises:
        UsageError: a number is out of range.

    Source: the Tammes problem in Hu et al. (2023), Your contrastive learning is secretly doing stochastic neighbor
    embedding, section 3; optimality of both for every Gaussian, Cohn and Kumar (2007).

    >>> minimize_uniformity_loss(5, 4).deviation < 1e-4
    True
    """
    check_integer("items", items, 2)
    check_integer("dimensions", dimensions, 2)
    if temperature is None:
        # Neighbors are about n^(-1 / (d - 1)) apart; a wider kernel would be flat at that distance.
        temperature = min(0.5, 20 * items ** (-2 / (dimensions - 1)))
    generator = torch_generator("theory.uniformity", seed)
    free = torch.randn(items, dimensions, generator=generator, dtype=torch.float64).requires_grad_()
    uniformity = Objective(WithinView(), Gibbs("chordal", temperature), Free(), Pairs(), LogMeanKernel())
    values = torch.tensor(list(iterate_lbfgs([free], lambda: uniformity(free), iterations)))
    points = normalize(free.detach())
    cosines = (points @ points.T)[~torch.eye(items, dtype=torch.bool)].clamp(-1, 1)
    deviation = None
    if dimensions == 2:
        deviation = float((_neighbor_angles(points) - 2 * math.pi / items).abs().max())
    elif dimensions >= items - 1:
        deviation = float((cosines + 1 / (items - 1)).abs().max())
    return UniformPoints(points, values, float(cosines.max().arccos()), deviation)


@keep_deprecated_attributes(embeddings="clean_embeddings")
@dataclass(frozen=True, eq=False)
class FiveGaussiansTraining:
    """Points of five Gaussians, embedded on the circle by a trained encoder.

    Attributes:
        data: points of the Gaussian mixture that were embedded.
        clean_embeddings: embeddings of the clean points, (n, 2), unit length.
        alignment: mean squared distance between the two views of a point on the circle; 0 is perfect.
        uniformity: log mean exp(-2 |z_i - z_j|^2) of the embeddings; lower is more even.
        perfect_uniformity: smallest possible uniformity, that of the regular n-gon.
        untrained_uniformity: uniformity of the embeddings before training.
    """

    data: Mixture
    clean_embeddings: Tensor
    alignment: float
    uniformity: float
    perfect_uniformity: float
    untrained_uniformity: float

    def figure(self) -> Figure:
        """Draw the data, the embeddings, and the sorted angles of embeddings against evenly spaced angles."""
        figure, (left, middle, right) = create_panels(3)
        colors = [SERIES[int(k) % len(SERIES)] for k in self.data.component_indices]
        left.scatter(self.data.x[:, 0].numpy(), self.data.x[:, 1].numpy(), c=colors, s=8)
        left.set(title="data", aspect="equal")
        plot_unit_circle(middle)
        middle.scatter(
            self.clean_embeddings[:, 0].numpy(), self.clean_embeddings[:, 1].numpy(), c=colors, s=8, zorder=3
        )
        middle.set_title("embeddings")
        angles = torch.atan2(self.clean_embeddings[:, 1], self.clean_embeddings[:, 0]).sort().values
        even = torch.linspace(-math.pi, math.pi, len(angles))
        right.plot(even.numpy(), even.numpy(), color=GREY, linestyle="--", label="evenly spaced")
        right.plot(even.numpy(), angles.numpy(), color=ORANGE, label="embeddings")
        right.set(title="sorted angles", xlabel="radians", ylabel="radians", aspect="equal")
        right.legend(frameon=False, loc="upper left")
        return figure


def train_on_five_gaussians(
    objective: Loss | None = None,
    *,
    data: Mixture | None = None,
    noise: float = 0.02,
    iterations: int = 1000,
    seed: int = 0,
) -> FiveGaussiansTraining:
    """Train an encoder that maps five Gaussians to the circle with nearly perfect alignment and uniformity.

    Args:
        objective: the loss to minimize; None: NT-Xent at temperature 0.5.
        data: the mixture; None: 250 points of five Gaussians in the plane, sigma 0.1.
        noise: standard deviation of the Gaussian noise that makes a view, in units of the data.
        iterations: steps of Adam, each over all points with fresh views.
        seed: of the initial weights and the views.

    Raises:
        UsageError: noise is negative.

    Source: Hu et al. (2023), section 3 and figure 2.
    """
    data = data or gaussian_mixture()
    trained = train_circle_encoder(objective or nt_xent(), data.x, noise=noise, iterations=iterations, seed=seed)
    angles = torch.arange(len(data.x)) * (2 * math.pi / len(data.x))
    polygon = torch.stack([angles.cos(), angles.sin()], 1)
    perfect = measure_alignment_uniformity(polygon, polygon).uniformity
    return FiveGaussiansTraining(
        data, trained.clean_embeddings, *trained.trained_metrics, perfect, trained.untrained_metrics.uniformity
    )


def _neighbor_angles(points: Tensor) -> Tensor:
    """Return the angles between neighboring points on the circle, (n,)."""
    angles = torch.atan2(points[:, 1], points[:, 0]).sort().values
    return torch.cat([angles.diff(), angles[:1] + 2 * math.pi - angles[-1:]])
