"""Target plans that Gaussian noise and mixup augmentations imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contraport.engine import Gibbs
from contraport.engine.log_kernels import CostFunction
from contraport.errors import check, check_nonempty_sequence, is_number
from contraport.objectives import KL, Objective, Rows, SoftNeighbors, WithinView
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes
from contraport.plots.figure_setup import BLUE, ORANGE, create_panels, draw_heatmap
from contraport.theory.mixture_samples_and_lbfgs import sample_gaussians_on_circle

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(noise_targets="noise_target_plans", mixup_targets="mixup_target_plans")
@dataclass(frozen=True, eq=False)
class AugmentationTargets:
    """Target plans that noise and mixup imply for multi-dimensional Gaussian mixtures.

    Attributes:
        dimensions: number of dimensions of each space, (k,).
        noise_target_plans: target plan of noise in each space, (k, n, n), sorted by component; each row has mass 1/n.
        mixup_target_plans: target plan of mixup in each space, (k, n, n), like `noise_target_plans`.
        noise_mass_within_components: mass of the noise target on pairs of one component, in each space, (k,).
        mixup_mass_within_components: mass of the mixup target on pairs of one component, in each space, (k,).
        noise_share_in_plane: share of the squared displacement by noise in the plane of the centers, (k,).
        mixup_share_in_plane: share of the squared displacement by mixup in the plane of the centers, (k,).
    """

    dimensions: Tensor
    noise_target_plans: Tensor
    mixup_target_plans: Tensor
    noise_mass_within_components: Tensor
    mixup_mass_within_components: Tensor
    noise_share_in_plane: Tensor
    mixup_share_in_plane: Tensor

    def figure(self) -> Figure:
        """Draw point displacements and target plans of noise and mixup augmentations."""
        figure, (left, middle, right) = create_panels(3)
        shares = (("noise", self.noise_share_in_plane, ORANGE), ("mixup", self.mixup_share_in_plane, BLUE))
        for name, share, color in shares:
            left.semilogx(self.dimensions, share, "o-", base=2, color=color, label=name)
        left.set(title="displacement in the plane of the centers", xlabel="dimensions", ylim=(0, 1.05))
        left.title.set_fontsize("medium")
        left.legend(frameon=False)
        d = int(self.dimensions[0])
        plans = (self.noise_target_plans[0], self.mixup_target_plans[0])
        for ax, name, target in zip((middle, right), ("noise", "mixup"), plans, strict=True):
            draw_heatmap(ax, (target * len(target)).clamp_min(1e-6).log10(), vmin=-6, vmax=0)
            ax.set_title(f"log10 of the {name} target, d = {d}", fontsize="medium")
        return figure


@accept_deprecated_keywords(mix="mixup_fraction")
def compute_noise_and_mixup_targets(
    dimensions: Sequence[int] = (2, 4, 8, 16, 32, 64),
    *,
    items: int = 250,
    components: int = 5,
    sigma: float = 0.1,
    mixup_fraction: float = 0.5,
    seed: int = 0,
) -> AugmentationTargets:
    """Compute the target plans that noise and mixup augmentations imply.

    An entry is how likely one item is a view of another. The noise target weighs y by an isotropic Gaussian density of
    y - x. The mixup target weighs y by the density of mixup_fraction (x' - x'') over the data, which for a Gaussian
    mixture is a Gaussian mixture again. The variance of the noise equals the mean squared displacement by mixup.

    Args:
        dimensions: of the spaces, at least 2 each.
        items: n.
        components: m; the centers lie on the unit circle of the first two coordinates.
        sigma: standard deviation of a component.
        mixup_fraction: mixup moves an item by this fraction towards another one, in (0, 1).
        seed: of the points.

    Raises:
        UsageError: a number is out of range.

    Source: Hu et al. (2023), Your contrastive learning is secretly doing stochastic neighbor embedding, section 4.

    >>> result = compute_noise_and_mixup_targets((2, 32), items=50)
    >>> bool(result.noise_share_in_plane[1] < 0.1 < 0.5 < result.mixup_share_in_plane[1])
    True
    """
    check_nonempty_sequence("dimensions", dimensions, "a list of numbers of dimensions")
    good = is_number(mixup_fraction) and 0 < mixup_fraction < 1
    check(good, f"mixup_fraction: must be in (0, 1), got {mixup_fraction!r}.")
    mixtures = [sample_gaussians_on_circle(items, d, components, sigma, seed=seed) for d in dimensions]
    # Mean squared displacement by mixup along each coordinate.
    moved = [2 * mixup_fraction**2 * (data.centers.var(0, correction=0) + float(sigma) ** 2) for data in mixtures]
    noise = [
        _compute_soft_neighbor_plan(data.x, Gibbs("sqeuclidean", 2 * float(m.mean())))
        for data, m in zip(mixtures, moved, strict=True)
    ]
    mixup = [
        _compute_soft_neighbor_plan(data.x, Gibbs(_build_mixup_cost_function(data.centers, sigma, mixup_fraction), 1.0))
        for data in mixtures
    ]
    same = mixtures[0].component_indices[:, None] == mixtures[0].component_indices
    return AugmentationTargets(
        torch.tensor(dimensions),
        torch.stack(noise),
        torch.stack(mixup),
        noise_mass_within_components=torch.stack([target[same].sum() for target in noise]),
        mixup_mass_within_components=torch.stack([target[same].sum() for target in mixup]),
        noise_share_in_plane=2 / torch.tensor(dimensions),
        mixup_share_in_plane=torch.stack([m[:2].sum() / m.sum() for m in moved]),
    )


def _build_mixup_cost_function(centers: Tensor, sigma: float, fraction: float) -> CostFunction:
    """Build the mixup cost: the negative log density of two views' difference under mixup.

    A constant is left out. The difference of two views is fraction (x' - x'') for two points of the mixture.
    """
    m, d = centers.shape
    moves = fraction * (centers[:, None] - centers).reshape(m * m, d)
    # A difference of two points of one component has variance 2 sigma^2; the kernel divides by twice the variance.
    kernel = Gibbs("sqeuclidean", 2 * 2 * (fraction * sigma) ** 2)

    def cost(x: Tensor, y: Tensor) -> Tensor:
        differences = (x[:, None] - y).reshape(-1, d)
        log_density: Tensor = kernel(differences, moves).dense().logsumexp(1)
        return -log_density.view(len(x), len(y))

    return cost


def _compute_soft_neighbor_plan(x: Tensor, kernel: Gibbs) -> Tensor:
    """Compute the kernel of all pairs, (n, n), with zero diagonal and row sums 1/n."""
    return Objective(WithinView(), Gibbs("sqeuclidean"), Rows(), SoftNeighbors(x, kernel), KL()).target_plan(x)
