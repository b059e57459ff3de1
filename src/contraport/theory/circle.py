"""An encoder that contrastive learning trains onto the circle, where embeddings can be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.catalog.objectives import align_uniform
from contraport.errors import check_nonnegative
from contraport.objectives.objective import Loss
from contraport.plots.colors import GREY
from contraport.seeding import seed_global_generators, torch_seed

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class AlignmentUniformity(NamedTuple):
    """How two views of the same items lie on the circle.

    Attributes:
        alignment: mean squared distance of two views; 0 is perfect.
        uniformity: log mean exp(-2 |z_i - z_j|^2) of the embeddings of a view; lower is more even.
    """

    alignment: float
    uniformity: float


class CircleEncoding(NamedTuple):
    """Items on the circle.

    Attributes:
        embeddings: of the items themselves, (n, 2), of unit length.
        views: the embeddings of two noisy views, (n, 2) each, of any length.
        before: how views lay before training.
        after: how they lie after it.
    """

    embeddings: Tensor
    views: tuple[Tensor, Tensor]
    before: AlignmentUniformity
    after: AlignmentUniformity


@torch.random.fork_rng(devices=[])
def train_circle_encoder(loss: Loss, x: Tensor, *, noise: float, iterations: int, seed: int) -> CircleEncoding:
    """Train an encoder with two hidden layers by a loss of two noisy views of all items.

    Args:
        loss: what is minimised.
        x: the items, (n, d).
        noise: standard deviation of the Gaussian noise that makes a view of an item, in units of the data.
        iterations: of Adam, each over all items with fresh views.
        seed: of the first weights and of the views.

    Raises:
        UsageError: noise is negative.
    """
    check_nonnegative("noise", noise)
    seed_global_generators(torch_seed("theory.circle", seed))
    encoder = nn.Sequential(nn.Linear(x.shape[1], 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))

    def views() -> tuple[Tensor, Tensor]:
        return encoder(x + noise * torch.randn_like(x)), encoder(x + noise * torch.randn_like(x))

    with torch.no_grad():
        before = spread(*views())
    optimizer = torch.optim.Adam(encoder.parameters(), 1e-3)
    for _ in range(iterations):
        optimizer.zero_grad()
        loss(*views()).backward()
        optimizer.step()
    with torch.no_grad():
        found = views()
        return CircleEncoding(F.normalize(encoder(x)), found, before, spread(*found))


def spread(z0: Tensor, z1: Tensor) -> AlignmentUniformity:
    """Return how two views lie on the sphere.

    >>> spread(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
    Spread(alignment=2.0, uniformity=-8.0)
    """
    terms = align_uniform().terms(z0, z1)
    return AlignmentUniformity(terms["Cost"], terms["LogMeanKernel"])


def draw_circle(ax: Axes) -> None:
    """Draw the circle itself."""
    angles = torch.linspace(0, 2 * torch.pi, 200)
    ax.plot(angles.cos().numpy(), angles.sin().numpy(), color=GREY, linewidth=0.8)
    ax.set(aspect="equal", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
