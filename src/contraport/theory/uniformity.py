"""Uniformity on the sphere, of points optimized directly or of trained embeddings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from contraport.catalog.objectives import align_uniform, iot, iot_uniform, nt_xent
from contraport.engine import Gibbs, normalize
from contraport.errors import check_integer, check_nonempty_sequence, check_nonnegative, check_type
from contraport.objectives import Free, LogMeanKernel, Objective, Pairs, WithinView
from contraport.objectives.loss import Loss
from contraport.options import keep_deprecated_attributes
from contraport.plots.figure_setup import BLUE, GREY, ORANGE, SERIES_COLORS, create_panels, draw_heatmap, mass_colormap
from contraport.plots.plan_plots import LogScale, log10_with_floor, share_on_target
from contraport.seeding import derive_torch_seed, seed_torch_generators, torch_generator
from contraport.theory.mixture_samples_and_lbfgs import MixtureSample, iterate_lbfgs, sample_gaussians_on_circle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


class _CircleTrainingResult(NamedTuple):
    """Embeddings on the unit circle, with metrics before and after training."""

    clean_embeddings: Tensor
    view_embeddings: tuple[Tensor, Tensor]
    untrained_metrics: AlignmentUniformity
    trained_metrics: AlignmentUniformity


@torch.random.fork_rng(devices=[])
def _train_encoder_to_circle(
    loss: Loss, x: Tensor, *, noise: float, iterations: int, seed: int
) -> _CircleTrainingResult:
    """Train an encoder that maps to the unit circle, on two noisy views."""
    check_type("objective", loss, Loss, "nt_xent()")
    check_nonnegative("noise", noise)
    check_integer("iterations", iterations, 0)
    seed_torch_generators(derive_torch_seed("theory.circle", seed), "cpu")
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
        return _CircleTrainingResult(normalize(encoder(x)), final, before, measure_alignment_uniformity(*final))


def _plot_unit_circle(ax: Axes) -> None:
    """Draw the unit circle with equal axes."""
    angles = torch.linspace(0, 2 * torch.pi, 200)
    ax.plot(angles.cos(), angles.sin(), color=GREY, linewidth=0.8)
    ax.set(aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])


@keep_deprecated_attributes(
    uniformities="uniformity_by_iteration",
    values="uniformity_by_iteration",
    least_angle="smallest_angle",
    deviation="deviation_from_optimum",
)
@dataclass(frozen=True, eq=False)
class UniformPoints:
    """Points on the unit sphere that minimize the uniformity loss.

    Attributes:
        points: positions of the points, (n, d), unit length.
        uniformity_by_iteration: uniformity at the start and after each iteration of L-BFGS, (iterations + 1,).
        smallest_angle: smallest angle between two points, in radians, which the Tammes problem maximizes.
        deviation_from_optimum: largest deviation from the known optimum; None if none is known. For d = 2 an angle
            between neighbors is compared with 2 pi / n, in radians; for d >= n - 1 a cosine with -1 / (n - 1).
    """

    points: Tensor
    uniformity_by_iteration: Tensor
    smallest_angle: float
    deviation_from_optimum: float | None

    def figure(self) -> Figure:
        """Draw the points (if not 2-D, the uniformity by iteration) and the matrix of cosines."""
        figure, (left, right) = create_panels(2)
        points = self.points
        if points.shape[1] == 2:
            points = points[torch.atan2(points[:, 1], points[:, 0]).argsort()]
            _plot_unit_circle(left)
            left.scatter(points[:, 0], points[:, 1], color=BLUE, zorder=3)
        else:
            left.plot(self.uniformity_by_iteration, color=BLUE)
            left.set(xlabel="iteration", ylabel="uniformity")
        left.set_title(f"{len(points)} points in {points.shape[1]} dimensions", fontsize="medium")
        draw_heatmap(right, points @ points.T, signed=True)
        right.set_title("cosines", fontsize="medium")
        return figure


def minimize_uniformity_loss(
    items: int, dimensions: int, *, temperature: float | None = None, iterations: int = 500, seed: int = 0
) -> UniformPoints:
    """Minimize the uniformity loss of Wang and Isola over free points.

    The points lie on the unit sphere. The optimum is a regular polygon for d = 2 and a simplex for d >= n - 1.

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

    >>> minimize_uniformity_loss(5, 4).deviation_from_optimum < 1e-4
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
        angles = torch.atan2(points[:, 1], points[:, 0]).sort().values
        between = torch.cat([angles.diff(), angles[:1] + 2 * math.pi - angles[-1:]])
        deviation = float((between - 2 * math.pi / items).abs().max())
    elif dimensions >= items - 1:
        deviation = float((cosines + 1 / (items - 1)).abs().max())
    return UniformPoints(points, values, float(cosines.max().arccos()), deviation)


@keep_deprecated_attributes(embeddings="clean_embeddings")
@dataclass(frozen=True, eq=False)
class FiveGaussiansResult:
    """Embeddings of five Gaussian clusters on the circle, with alignment and uniformity.

    Attributes:
        data: points of the Gaussian mixture that were embedded.
        clean_embeddings: embeddings of the clean points, (n, 2), unit length.
        alignment: mean squared distance between the two views of a point on the circle; 0 is perfect.
        uniformity: log mean exp(-2 |z_i - z_j|^2) of the embeddings; lower is more even.
        perfect_uniformity: smallest possible uniformity, that of the regular n-gon.
        untrained_uniformity: uniformity of the embeddings before training.
    """

    data: MixtureSample
    clean_embeddings: Tensor
    alignment: float
    uniformity: float
    perfect_uniformity: float
    untrained_uniformity: float

    def figure(self) -> Figure:
        """Draw the data, the embeddings, and the embeddings' angles in sorted order."""
        figure, (left, middle, right) = create_panels(3)
        colors = [SERIES_COLORS[int(k) % len(SERIES_COLORS)] for k in self.data.component_indices]
        left.scatter(self.data.x[:, 0], self.data.x[:, 1], c=colors, s=8)
        left.set(title="data", aspect="equal")
        _plot_unit_circle(middle)
        middle.scatter(self.clean_embeddings[:, 0], self.clean_embeddings[:, 1], c=colors, s=8, zorder=3)
        middle.set_title("embeddings")
        angles = torch.atan2(self.clean_embeddings[:, 1], self.clean_embeddings[:, 0]).sort().values
        even = torch.linspace(-math.pi, math.pi, len(angles))
        right.plot(even, even, color=GREY, linestyle="--", label="evenly spaced")
        right.plot(even, angles, color=ORANGE, label="embeddings")
        right.set(title="sorted angles", xlabel="radians", ylabel="radians", aspect="equal")
        right.legend(frameon=False, loc="upper left")
        return figure


def train_on_five_gaussians(
    objective: Loss | None = None,
    *,
    data: MixtureSample | None = None,
    noise: float = 0.02,
    iterations: int = 1000,
    seed: int = 0,
) -> FiveGaussiansResult:
    """Train an encoder that maps five Gaussians to the circle.

    Alignment and uniformity become nearly perfect.

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
    data = sample_gaussians_on_circle() if data is None else data
    check_type("data", data, MixtureSample, "sample_gaussians_on_circle()")
    loss = nt_xent() if objective is None else objective
    trained = _train_encoder_to_circle(loss, data.x, noise=noise, iterations=iterations, seed=seed)
    angles = torch.arange(len(data.x)) * (2 * math.pi / len(data.x))
    polygon = torch.stack([angles.cos(), angles.sin()], 1)
    perfect = measure_alignment_uniformity(polygon, polygon).uniformity
    return FiveGaussiansResult(
        data, trained.clean_embeddings, *trained.trained_metrics, perfect, trained.untrained_metrics.uniformity
    )


@keep_deprecated_attributes(
    embeddings="clean_embeddings",
    spread="alignment_and_uniformity",
    penalty="penalty_value",
    unevenness="negatives_unevenness",
    positive_share="positive_mass_share",
)
class PenaltyResult(NamedTuple):
    """Embeddings, plan and metrics at one weight of the uniformity penalty.

    Attributes:
        clean_embeddings: embeddings of the clean points, (n, 2), unit length.
        plan: transport plan of both views, (2n, 2n), sorted by component.
        alignment_and_uniformity: alignment and uniformity of the embeddings.
        penalty_value: uniformity penalty KL(Qbar | P) without its factor; 0 if all negatives have equal mass.
        negatives_unevenness: total variation distance of the negatives' masses from uniform.
        positive_mass_share: share of the plan's mass on positives, 0 to 1.
    """

    clean_embeddings: Tensor
    plan: Tensor
    alignment_and_uniformity: AlignmentUniformity
    penalty_value: float
    negatives_unevenness: float
    positive_mass_share: float


@dataclass(frozen=True, eq=False)
class EmbeddingsAndPlansByPenalty:
    """Results of `sweep_uniformity_penalty`, by weight of the uniformity penalty.

    Attributes:
        data: points of the Gaussian mixture that were embedded.
        by_factor: result by factor of the penalty.
    """

    data: MixtureSample
    by_factor: Mapping[float, PenaltyResult]

    def figure(self) -> Figure:
        """Draw the embeddings and the plans for each penalty weight."""
        count = len(self.by_factor)
        figure, axes = create_panels(2 * count, figure_width=2.9 * count + 0.5, ratio=1.0)
        colors = [SERIES_COLORS[int(k) % len(SERIES_COLORS)] for k in self.data.component_indices]
        scale = LogScale.from_matrices([one.plan.numpy() for one in self.by_factor.values()])
        assert scale is not None
        for (factor, one), above, below in zip(self.by_factor.items(), axes[:count], axes[count:], strict=True):
            _plot_unit_circle(above)
            above.scatter(one.clean_embeddings[:, 0], one.clean_embeddings[:, 1], c=colors, s=9, zorder=3)
            uniformity = one.alignment_and_uniformity.uniformity
            above.set_title(f"factor {factor:g}: uniformity {uniformity:.2f}", fontsize="medium")
            logs = log10_with_floor(one.plan.numpy(), scale, without_self=True)
            cmap = mass_colormap(below)
            image = below.imshow(logs, cmap=cmap, vmin=scale.log10_low, vmax=scale.log10_high, interpolation="nearest")
            below.set(xticks=[], yticks=[])
            below.spines[:].set_visible(False)
            below.set_title(f"plan: unevenness of negatives {one.negatives_unevenness:.2f}", fontsize="medium")
        figure.colorbar(image, ax=axes[count:], location="bottom", fraction=0.06, label="log10 mass of a pair")
        return figure


def sweep_uniformity_penalty(
    factors: Sequence[float] = (0.0, 1.0),
    *,
    data: MixtureSample | None = None,
    temperature: float = 0.5,
    noise: float = 0.02,
    iterations: int = 500,
    seed: int = 0,
) -> EmbeddingsAndPlansByPenalty:
    """Train encoders with several weights of IOT-CL's uniformity penalty.

    Each factor of the penalty trains its own encoder onto the circle. The penalty is zero where all negatives have
    equal mass in the plan.

    Args:
        factors: of the penalty, nonnegative; 0 turns it off.
        data: the mixture; None: 100 points of five Gaussians in the plane, sigma 0.1.
        temperature: in units of the cosine distance.
        noise: standard deviation of the Gaussian noise that makes a view, in units of the data.
        iterations: steps of Adam, each over all points with fresh views.
        seed: of the initial weights, which are the same for all factors, and of the views.

    Raises:
        UsageError: there is no factor, or a number is out of range.

    Source: the uniformity penalty of inverse optimal transport for contrastive learning, eq. 19-20 and its figure.

    >>> result = sweep_uniformity_penalty(data=sample_gaussians_on_circle(20), iterations=1)
    >>> list(result.by_factor), result.by_factor[1.0].plan.shape
    ([0.0, 1.0], torch.Size([40, 40]))
    """
    check_nonempty_sequence("factors", factors, "a list of at least one number")
    data = sample_gaussians_on_circle(100) if data is None else data
    check_type("data", data, MixtureSample, "sample_gaussians_on_circle()")
    by_factor, loss = {}, iot_uniform(temperature)
    for factor in factors:
        penalized = iot(temperature, uniformity=factor)
        trained = _train_encoder_to_circle(penalized, data.x, noise=noise, iterations=iterations, seed=seed)
        views = trained.view_embeddings
        plan, target = loss.plan(*views), loss.target_plan(*views)
        negatives = plan[(target == 0) & ~torch.eye(len(plan), dtype=torch.bool)]
        shares = negatives / negatives.sum()
        by_factor[factor] = PenaltyResult(
            trained.clean_embeddings,
            plan,
            trained.trained_metrics,
            loss.terms(*views)["PlanUniformity"],
            float((shares - 1 / len(shares)).abs().sum() / 2),
            share_on_target(plan.numpy(), target.numpy()),
        )
    return EmbeddingsAndPlansByPenalty(data, by_factor)
