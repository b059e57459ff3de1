"""Effect of the uniformity penalty of inverse optimal transport on a Gaussian mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from contraport.catalog.objectives import iot, iot_uniform
from contraport.errors import check
from contraport.options import keep_deprecated_attributes
from contraport.plots.colors import SERIES
from contraport.plots.figure_setup import create_panels, mass_colormap
from contraport.plots.mass_scale import LogScale, clipped_log10, share_on_target
from contraport.theory.toy_problems import (
    AlignmentUniformity,
    Mixture,
    gaussian_mixture,
    measure_alignment_uniformity,
    plot_unit_circle,
    train_circle_encoder,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(
    embeddings="clean_embeddings",
    spread="alignment_and_uniformity",
    penalty="penalty_value",
    unevenness="negatives_unevenness",
    positive_share="positive_mass_share",
)
class PenaltyResult(NamedTuple):
    """Result of training an encoder with one factor of the uniformity penalty.

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
class PenaltySweep:
    """Results of training with several factors of the uniformity penalty.

    Attributes:
        data: points of the Gaussian mixture that were embedded.
        by_factor: result by factor of the penalty.
    """

    data: Mixture
    by_factor: Mapping[float, PenaltyResult]

    def figure(self) -> Figure:
        """Draw the embeddings for each factor, and below them the plans on one logarithmic color scale."""
        count = len(self.by_factor)
        figure, axes = create_panels(2 * count, width=2.9 * count + 0.5, ratio=1.0)
        colors = [SERIES[int(k) % len(SERIES)] for k in self.data.component_indices]
        plans = [one.plan.numpy() for one in self.by_factor.values()]
        scale = LogScale.from_matrices(plans)
        assert scale is not None
        for (factor, one), above, below, plan in zip(
            self.by_factor.items(), axes[:count], axes[count:], plans, strict=True
        ):
            plot_unit_circle(above)
            above.scatter(
                one.clean_embeddings[:, 0].numpy(), one.clean_embeddings[:, 1].numpy(), c=colors, s=9, zorder=3
            )
            above.set_title(
                f"factor {factor:g}: uniformity {one.alignment_and_uniformity.uniformity:.2f}", fontsize="medium"
            )
            logs = clipped_log10(plan, scale, without_self=True)
            image = below.imshow(
                logs, cmap=mass_colormap(below), vmin=scale.log10_low, vmax=scale.log10_high, interpolation="nearest"
            )
            below.set(xticks=[], yticks=[])
            below.spines[:].set_visible(False)
            below.set_title(f"plan: unevenness of negatives {one.negatives_unevenness:.2f}", fontsize="medium")
        figure.colorbar(image, ax=axes[count:], location="bottom", fraction=0.06, label="log10 mass of a pair")
        return figure


def sweep_uniformity_penalty(
    factors: Sequence[float] = (0.0, 1.0),
    *,
    data: Mixture | None = None,
    temperature: float = 0.5,
    noise: float = 0.02,
    iterations: int = 500,
    seed: int = 0,
) -> PenaltySweep:
    """Train an encoder onto the circle by balanced matching, once for each factor of the uniformity penalty.

    The penalty is zero where all negatives have equal mass in the plan.

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

    >>> result = sweep_uniformity_penalty(data=gaussian_mixture(20), iterations=1)
    >>> list(result.by_factor), result.by_factor[1.0].plan.shape
    ([0.0, 1.0], torch.Size([40, 40]))
    """
    check(len(factors) > 0, "factors: must have at least one number, got none.", "missing")
    data = data or gaussian_mixture(100)
    by_factor = {}
    for factor in factors:
        loss = iot(temperature, uniformity=factor)
        trained = train_circle_encoder(loss, data.x, noise=noise, iterations=iterations, seed=seed)
        by_factor[factor] = _summarize(trained.clean_embeddings, trained.view_embeddings, temperature)
    return PenaltySweep(data, by_factor)


def _summarize(embeddings: Tensor, views: tuple[Tensor, Tensor], temperature: float) -> PenaltyResult:
    loss = iot_uniform(temperature)
    plan, target = loss.plan(*views), loss.target_plan(*views)
    negatives = plan[(target == 0) & ~torch.eye(len(plan), dtype=torch.bool)]
    shares = negatives / negatives.sum()
    return PenaltyResult(
        embeddings,
        plan,
        measure_alignment_uniformity(*views),
        loss.terms(*views)["PlanUniformity"],
        float((shares - 1 / len(shares)).abs().sum() / 2),
        share_on_target(plan.numpy(), target.numpy()),
    )
