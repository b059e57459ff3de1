"""Noise and mixup: two augmentations that need to know nothing of the domain, as the plans that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contraport.engine import Gibbs
from contraport.engine.log_kernels import CostFunction
from contraport.errors import check, is_number
from contraport.objectives import KL, Objective, Rows, SoftNeighbors, WithinView
from contraport.plots.colors import BLUE, ORANGE
from contraport.plots.figure_setup import heatmap, panels
from contraport.theory.toy import Mixture, gaussian_mixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class NoiseAndMixup:
    """What noise and mixup want, on a mixture of Gaussians whose centres lie in a plane, over the size of the space.

    Attributes:
        dimensions: (k,), the sizes of the space.
        noise_targets: (k, n, n), the plans that noise asks for, each row of mass 1/n; items in the order of components.
        mixup_targets: (k, n, n), those of mixup.
        noise_mass_within_components: (k,), the mass that noise wants within a component.
        mixup_mass_within_components: (k,), likewise of mixup.
        noise_share_in_plane: (k,), how much of the squared displacement by noise lies in the plane of the centres.
        mixup_share_in_plane: (k,), likewise by mixup.
    """

    dimensions: Tensor
    noise_targets: Tensor
    mixup_targets: Tensor
    noise_mass_within_components: Tensor
    mixup_mass_within_components: Tensor
    noise_share_in_plane: Tensor
    mixup_share_in_plane: Tensor

    def figure(self) -> Figure:
        """Draw the share in the plane over the size of the space, and the targets in the first."""
        figure, (left, middle, right) = panels(3)
        left.semilogx(
            self.dimensions.numpy(), self.noise_share_in_plane.numpy(), "o-", base=2, color=ORANGE, label="noise"
        )
        left.semilogx(
            self.dimensions.numpy(), self.mixup_share_in_plane.numpy(), "o-", base=2, color=BLUE, label="mixup"
        )
        left.set(title="displacement in the plane of the centres", xlabel="dimensions", ylim=(0, 1.05))
        left.title.set_fontsize("medium")
        left.legend(frameon=False)
        d = int(self.dimensions[0])
        for ax, name, target in ((middle, "noise", self.noise_targets[0]), (right, "mixup", self.mixup_targets[0])):
            heatmap(ax, (target * len(target)).clamp_min(1e-6).log10(), vmin=-6, vmax=0)
            ax.set_title(f"log share wanted by {name}, d = {d}", fontsize="medium")
        return figure


def noise_and_mixup(
    dimensions: Sequence[int] = (2, 4, 8, 16, 32, 64),
    *,
    items: int = 250,
    components: int = 5,
    sigma: float = 0.1,
    mix: float = 0.5,
    seed: int = 0,
) -> NoiseAndMixup:
    """Return the plans that noise and mixup ask for: how likely two items are views of each other.

    Noise x + delta wants an item near x by the density of delta, isotropic Gaussian: the squared distance in all
    dimensions. Mixup x + mix (y - x) wants it by the density of mix (y - x): that of differences of the data, which for
    a mixture of Gaussians is one again. The noise is as strong as mixup moves an item, root mean square.

    Args:
        dimensions: the sizes of the space, at least 2.
        items: n.
        components: m; the centres lie on the unit circle of the first two coordinates.
        sigma: standard deviation of a component.
        mix: how far mixup goes towards the other item, in (0, 1).
        seed: of the points.

    Raises:
        UsageError: a number is out of its range.

    Source: Hu et al. (2023), Your contrastive learning is secretly doing stochastic neighbor embedding, section 4.

    >>> found = noise_and_mixup((2, 32), items=50)
    >>> bool(found.noise_share_in_plane[1] < 0.1 < 0.5 < found.mixup_share_in_plane[1])
    True
    """
    check(len(dimensions) >= 1, "dimensions: expected at least one number, got none.")
    check(is_number(mix) and 0 < mix < 1, f"mix: expected a number in (0, 1), got {mix!r}.")
    mixtures = [gaussian_mixture(items, d, components, sigma, seed=seed) for d in dimensions]
    moved = [_moved(data, sigma, mix) for data in mixtures]
    noise = [_target(d, Gibbs("sqeuclidean", 2 * float(m.mean()))) for d, m in zip(mixtures, moved, strict=True)]
    mixup = [_target(data, Gibbs(_mixup_cost(data.centers, sigma, mix), 1.0)) for data in mixtures]
    same = mixtures[0].components[:, None] == mixtures[0].components
    return NoiseAndMixup(
        torch.tensor(dimensions),
        torch.stack(noise),
        torch.stack(mixup),
        noise_mass_within_components=torch.stack([target[same].sum() for target in noise]),
        mixup_mass_within_components=torch.stack([target[same].sum() for target in mixup]),
        noise_share_in_plane=2 / torch.tensor(dimensions),
        mixup_share_in_plane=torch.stack([m[:2].sum() / m.sum() for m in moved]),
    )


def _moved(data: Mixture, sigma: float, mix: float) -> Tensor:
    """Return the mean square by which mixup moves an item, coordinate by coordinate, (d,)."""
    return 2 * mix**2 * (data.centers.var(0, correction=0) + sigma**2)


def _mixup_cost(centers: Tensor, sigma: float, mix: float) -> CostFunction:
    """Return minus the log-density of mix (y - x) at the difference of two points, up to a constant."""
    m, d = centers.shape
    moves = mix * (centers[:, None] - centers).reshape(m * m, d)
    kernel = Gibbs("sqeuclidean", 2 * 2 * (mix * sigma) ** 2)

    def cost(x: Tensor, y: Tensor) -> Tensor:
        differences = (x[:, None] - y).reshape(-1, d)
        log_density: Tensor = kernel(differences, moves).dense().logsumexp(1)
        return -log_density.view(len(x), len(y))

    return cost


def _target(data: Mixture, kernel: Gibbs) -> Tensor:
    """Return the plan of SNE that is wanted where views are made with this density."""
    return Objective(WithinView(), Gibbs("sqeuclidean"), Rows(), SoftNeighbors(data.x, kernel), KL()).target_plan(
        data.x
    )
