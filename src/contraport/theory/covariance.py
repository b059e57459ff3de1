"""Contrastive covariance: covariance of negative pairs minus that of positive pairs (Tian, 2022)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contraport.catalog.objectives import alpha_cl
from contraport.engine import Gibbs
from contraport.errors import check, check_all_values
from contraport.objectives import Free, Joint, Matrix, Objective, Pairs, TargetCost
from contraport.options import keep_deprecated_attributes
from contraport.plots.colors import BLUE, GREY
from contraport.plots.figure_setup import create_panels, draw_heatmap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(energy="trace")
@dataclass(frozen=True, eq=False)
class ContrastiveCovariance:
    """Contrastive covariance of two views with its eigenvalues and eigenvectors.

    Attributes:
        matrix: the covariance, (d, d), symmetric, indefinite, in squared units of the data.
        eigenvalues: eigenvalues of the covariance, (d,), descending.
        eigenvectors: eigenvectors as columns, (d, d), in the order of the eigenvalues.
    """

    matrix: Tensor
    eigenvalues: Tensor
    eigenvectors: Tensor

    @property
    def trace(self) -> float:
        """Trace of the covariance, which is the energy of alpha-CL if the data themselves serve as embeddings."""
        return float(self.matrix.trace())

    def figure(self) -> Figure:
        """Draw the covariance and its eigenvalues; negative eigenvalues mark directions of augmentation."""
        figure, (left, right) = create_panels(2)
        draw_heatmap(left, self.matrix, signed=True)
        left.set_title("contrastive covariance")
        right.bar(range(1, len(self.eigenvalues) + 1), self.eigenvalues.numpy(), color=BLUE)
        right.axhline(0, color=GREY, linewidth=0.8)
        right.set(title="eigenvalues", xlabel="rank", ylabel="eigenvalue")
        return figure


def contrastive_covariance(x0: Tensor, x1: Tensor, alpha: Tensor | None = None) -> ContrastiveCovariance:
    """Compute the contrastive covariance of two views, with its eigenvalues and eigenvectors.

    It is 1/2 mean_i sum_j alpha_ij [(x_i - x_j)(x_i - x_j)^T - (x_i - x_i')(x_i - x_i')^T]; alpha-CL maximizes its
    trace. The mean is over the 2n anchors of the joint layout; x_i' is the other view of x_i.

    Args:
        x0: first views, (n, d), n >= 2.
        x1: second views, (n, d).
        alpha: pair weights, (2n, 2n), view 0 before view 1: nonnegative, zero between views of one item, rows that
            sum to 1. None: equal weights for all negatives. See `pair_weights`.

    Raises:
        UsageError: shapes do not match, or alpha does not meet its conditions.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, definition 1.

    >>> x0 = torch.tensor([[1.0, 0.5], [-1.0, 0.5]])
    >>> x1 = torch.tensor([[1.0, -0.5], [-1.0, -0.5]])  # the views agree in the first coordinate only
    >>> contrastive_covariance(x0, x1).matrix
    tensor([[ 2.0000,  0.0000],
            [ 0.0000, -0.2500]], dtype=torch.float64)
    """
    x, alpha = torch.cat([x0, x1]).double(), _check_pair_weights(x0, x1, alpha)
    rows, columns, n = alpha.sum(1), alpha.sum(0), len(x0)
    crossed = x.T @ alpha @ x
    between = x.T @ ((rows + columns)[:, None] * x) - crossed - crossed.T
    apart = x - x.roll(n, 0)
    matrix = (between - apart.T @ (rows[:, None] * apart)) / (4 * n)
    values, vectors = torch.linalg.eigh(matrix)
    return ContrastiveCovariance(matrix, values.flip(0), vectors.flip(1))


def energy(z0: Tensor, z1: Tensor, alpha: Tensor | None = None) -> float:
    """Return the energy of embeddings, which is the trace of their contrastive covariance.

    It equals the negative loss of alpha-CL. The encoder maximizes it; the pair weights minimize it.

    Args:
        z0: embeddings of the first views, (n, d).
        z1: embeddings of the second views, (n, d).
        alpha: pair weights, as in `contrastive_covariance`.

    Raises:
        UsageError: as in `contrastive_covariance`.

    Source: Tian (2022), eq. 3.

    >>> round(energy(torch.tensor([[1.0], [-1.0]]), torch.tensor([[1.0], [-1.0]])), 6)
    2.0
    """
    with torch.no_grad():
        return -float(fixed_weight_loss(z0, z1, alpha)(z0.double(), z1.double()))


def pair_weights(
    z0: Tensor, z1: Tensor, *, regularizer: str = "direct", temperature: float = 0.5, p: float = 4.0, gamma: float = 2.0
) -> Tensor:
    """Return the pair weights that alpha-CL gives to embeddings, (2n, 2n); each row sums to 1.

    Args:
        z0: embeddings of the first views, (n, d).
        z1: embeddings of the second views, (n, d).
        regularizer: as in `contraport.objectives.alpha_cl`.
        temperature: as in `contraport.objectives.alpha_cl`.
        p: exponent of ``"direct"``.
        gamma: exponent of the inverse weights, above 1.

    Raises:
        UsageError: as in `alpha_cl`.

    >>> pair_weights(torch.eye(2), torch.eye(2), regularizer="uniform")[0]
    tensor([0.0000, 0.5000, 0.0000, 0.5000])
    """
    return alpha_cl(temperature, regularizer, p, gamma).plan(z0, z1) * 2 * len(z0)


def fixed_weight_loss(x0: Tensor, x1: Tensor, alpha: Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss function of alpha-CL with fixed pair weights, which is the negative energy.

    Embeddings are not normalized. As transport: half of the transport cost of the positives minus that of the pairs
    weighted by alpha.
    """
    positives, repelled = Pairs(), Matrix(_check_pair_weights(x0, x1, alpha))
    cost = Objective(Joint(), Gibbs("sqeuclidean", 1.0), Free(), positives, TargetCost())
    return lambda z0, z1: (cost(z0, z1) - cost(z0, z1, target=repelled)) / 2


def _check_pair_weights(x0: Tensor, x1: Tensor, alpha: Tensor | None) -> Tensor:
    """Return pair weights in double precision; raise `UsageError` if they are invalid."""
    n = len(x0)
    check(n >= 2, f"x0: must have at least 2 items, got {n}.")
    good = x0.ndim == 2 and x0.shape == x1.shape
    check(good, f"x1: must have the shape (n, d) of x0, got {tuple(x0.shape)} and {tuple(x1.shape)}.", "shape")
    if alpha is None:
        alpha = pair_weights(x0, x1, regularizer="uniform")
    size = (2 * n, 2 * n)
    check(tuple(alpha.shape) == size, f"alpha: must have shape {size}, got {tuple(alpha.shape)}.", "shape")
    alpha = alpha.double()
    same = torch.eye(n, dtype=torch.bool).repeat(2, 2)
    check_all_values("alpha", alpha, alpha >= 0, "nonnegative weights")
    check_all_values("alpha", alpha, (alpha == 0) | ~same, "zero between views of one item")
    sums = alpha.sum(1)
    check_all_values("alpha", sums, (sums - 1).abs() < 1e-4, "rows that sum to 1")
    return alpha / alpha.sum(1, keepdim=True)
