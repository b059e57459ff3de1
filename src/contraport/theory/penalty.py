"""The effect of the uniformity penalty: the same toy, trained to match its views with it and without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from contraport.catalog.objectives import iot, iot_uniform
from contraport.errors import check
from contraport.plots.colors import SERIES
from contraport.plots.figure_setup import mass_colormap, panels
from contraport.plots.mass_scale import Scale, log_masses, share_on_target
from contraport.theory.circle import AlignmentUniformity, draw_circle, spread, train_circle_encoder
from contraport.theory.toy import Mixture, gaussian_mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PenaltyResult(NamedTuple):
    """What one factor of the penalty made of the toy.

    Attributes:
        embeddings: (n, 2), of unit length.
        plan: (2n, 2n), of both views, in the order of the components.
        spread: alignment and uniformity of the embeddings.
        penalty: KL(Qbar | P) itself, without its factor: 0 where all negatives have the same mass.
        unevenness: the share of the mass on negatives that would have to move for all of them to have as much.
        on_positives: the share of the mass on positives.
    """

    embeddings: Tensor
    plan: Tensor
    spread: AlignmentUniformity
    penalty: float
    unevenness: float
    on_positives: float


@dataclass(frozen=True, eq=False)
class UniformityPenalty:
    """The toy by the factor of the penalty.

    Attributes:
        data: the mixture.
        by_factor: what each factor made of it.
    """

    data: Mixture
    by_factor: Mapping[float, PenaltyResult]

    def figure(self) -> Figure:
        """Draw the embeddings, and below them the plans on one logarithmic scale."""
        count = len(self.by_factor)
        figure, axes = panels(2 * count, width=2.9 * count + 0.5, ratio=1.0)
        colors = [SERIES[int(k) % len(SERIES)] for k in self.data.components]
        plans = [found.plan.numpy() for found in self.by_factor.values()]
        scale = Scale.of(plans)
        assert scale is not None
        for (factor, found), above, below, plan in zip(
            self.by_factor.items(), axes[:count], axes[count:], plans, strict=True
        ):
            draw_circle(above)
            above.scatter(found.embeddings[:, 0].numpy(), found.embeddings[:, 1].numpy(), c=colors, s=9, zorder=3)
            above.set_title(f"factor {factor:g}: uniformity {found.spread.uniformity:.2f}", fontsize="medium")
            logs = log_masses(plan, scale, without_self=True)
            image = below.imshow(
                logs, cmap=mass_colormap(below), vmin=scale.low, vmax=scale.high, interpolation="nearest"
            )
            below.set(xticks=[], yticks=[])
            below.spines[:].set_visible(False)
            below.set_title(f"plan: negatives uneven by {found.unevenness:.2f}", fontsize="medium")
        figure.colorbar(image, ax=axes[count:], location="bottom", fraction=0.06, label="log10 mass of a pair")
        return figure


def uniformity_penalty(
    factors: Sequence[float] = (0.0, 1.0),
    *,
    data: Mixture | None = None,
    temperature: float = 0.5,
    noise: float = 0.02,
    iterations: int = 500,
    seed: int = 0,
) -> UniformityPenalty:
    """Train an encoder of the toy onto the circle by balanced matching, with the uniformity penalty and without.

    The penalty asks that all negatives have the same mass in the plan.

    Args:
        factors: of the penalty, nonnegative; 0 is without it.
        data: the mixture; None is 100 points of five Gaussians in the plane, sigma 0.1.
        temperature: in units of the cosine distance.
        noise: standard deviation of the Gaussian noise that makes a view of a point, in units of the data.
        iterations: of Adam, each over all points with fresh views.
        seed: of the first weights, the same for all, and of the views.

    Raises:
        UsageError: there is no factor, or a number is out of its range.

    Source: the uniformity penalty of inverse optimal transport for contrastive learning, eq. 19-20 and the figure on
    it.

    >>> found = uniformity_penalty(data=gaussian_mixture(20), iterations=1)
    >>> list(found.by_factor), found.by_factor[1.0].plan.shape
    ([0.0, 1.0], torch.Size([40, 40]))
    """
    check(len(factors) > 0, "factors: expected one or more, got none.")
    data = data or gaussian_mixture(100)
    by_factor = {}
    for factor in factors:
        loss = iot(temperature, uniformity=factor)
        found = train_circle_encoder(loss, data.x, noise=noise, iterations=iterations, seed=seed)
        by_factor[factor] = _judged(found.embeddings, found.views, temperature)
    return UniformityPenalty(data, by_factor)


def _judged(embeddings: Tensor, views: tuple[Tensor, Tensor], temperature: float) -> PenaltyResult:
    loss = iot_uniform(temperature)
    plan, target = loss.plan(*views), loss.target_plan(*views)
    negatives = plan[(target == 0) & ~torch.eye(len(plan), dtype=torch.bool)]
    shares = negatives / negatives.sum()
    return PenaltyResult(
        embeddings,
        plan,
        spread(*views),
        loss.terms(*views)["PlanUniformity"],
        float((shares - 1 / len(shares)).abs().sum() / 2),
        share_on_target(plan.numpy(), target.numpy()),
    )
