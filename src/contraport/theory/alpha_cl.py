"""Contrastive covariance, pair weights and linear encoders of alpha-CL (Tian, 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from contraport.catalog.objectives import alpha_cl, pairwise
from contraport.engine import Gibbs, normalize
from contraport.errors import (
    check,
    check_all_values,
    check_boolean,
    check_integer,
    check_nonempty_sequence,
    type_and_shape,
)
from contraport.metrics.retrieval_ranks import check_points, is_dense_real_tensor
from contraport.objectives import Free, Objective
from contraport.options import keep_deprecated_attributes
from contraport.plots.figure_setup import BLUE, GREY, ORANGE, SERIES_COLORS, create_panels, draw_heatmap
from contraport.seeding import torch_generator
from contraport.theory.mixture_samples_and_lbfgs import iterate_lbfgs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@keep_deprecated_attributes(energy="trace")
@dataclass(frozen=True, eq=False)
class ContrastiveCovariance:
    """Covariance of negative pairs minus that of positive pairs, with eigenvectors.

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
        """Trace of the covariance, which is the energy that the encoder of alpha-CL maximizes."""
        return float(self.matrix.trace())

    def figure(self) -> Figure:
        """Draw the covariance as a heatmap and its eigenvalues as bars."""
        figure, (left, right) = create_panels(2)
        draw_heatmap(left, self.matrix.detach(), signed=True)
        left.set_title("contrastive covariance")
        right.bar(range(1, len(self.eigenvalues) + 1), self.eigenvalues.detach(), color=BLUE)
        right.axhline(0, color=GREY, linewidth=0.8)
        right.set(title="eigenvalues", xlabel="rank", ylabel="eigenvalue")
        return figure


def contrastive_covariance(x0: Tensor, x1: Tensor, alpha: Tensor | None = None) -> ContrastiveCovariance:
    """Compute the contrastive covariance of two views and its eigenvectors.

    It is 1/2 mean_i sum_j alpha_ij [(x_i - x_j)(x_i - x_j)^T - (x_i - x_i')(x_i - x_i')^T]; alpha-CL maximizes its
    trace. The mean is over the 2n anchors of the joint layout; x_i' is the other view of x_i.

    Args:
        x0: first views, (n, d), n >= 2.
        x1: second views, (n, d).
        alpha: pair weights, (2n, 2n), view 0 before view 1: nonnegative, zero between views of one item. None: equal
            weights for all negatives. See `pair_weights`.

    Raises:
        UsageError: shapes do not match, or alpha does not meet its conditions.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, definition 1.

    >>> x0 = torch.tensor([[1.0, 0.5], [-1.0, 0.5]])
    >>> x1 = torch.tensor([[1.0, -0.5], [-1.0, -0.5]])  # the views agree in the first coordinate only
    >>> contrastive_covariance(x0, x1).matrix
    tensor([[ 2.0000,  0.0000],
            [ 0.0000, -0.2500]], dtype=torch.float64)
    """
    alpha = _resolve_pair_weights(x0, x1, alpha)
    x = torch.cat([x0, x1]).double()
    rows, columns, n = alpha.sum(1), alpha.sum(0), len(x0)
    # The sum over all pairs (i, j), expanded so that no (2n, 2n, d) differences are stored.
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
    _check_views(z0, z1, "z")
    with torch.no_grad():
        return -float(_build_negated_energy(_resolve_pair_weights(z0, z1, alpha))(z0.double(), z1.double()))


def pair_weights(
    z0: Tensor,
    z1: Tensor,
    *,
    loss: Objective | None = None,
    regularizer: str = "direct",
    temperature: float = 0.5,
    p: float = 4.0,
    gamma: float = 2.0,
) -> Tensor:
    """Return the pair weights, (2n, 2n), of alpha-CL or a pairwise loss.

    The rows of alpha-CL sum to 1. Those of a loss phi(sum_j psi(d_i^2 - d_ij^2)) are phi' psi'(d_i^2 - d_ij^2), the
    derivatives in half the squared distances: with them held fixed, minus the energy has the gradient of the loss.

    Args:
        z0: embeddings of the first views, (n, d).
        z1: embeddings of the second views, (n, d).
        loss: a loss of `contraport.pairwise`, such as ``pairwise("triplet")``, with the negatives of both views;
            None: alpha-CL with the other arguments.
        regularizer: as in `contraport.alpha_cl`.
        temperature: as in `contraport.alpha_cl`.
        p: exponent of ``"direct"``.
        gamma: exponent of the inverse weights, above 1.

    Raises:
        UsageError: as in `alpha_cl` and `contrastive_covariance`, or a loss that is not one of `pairwise` with the
            negatives of both views.

    Source: Tian (2022), theorem 1, table 1.

    >>> pair_weights(torch.eye(2), torch.eye(2), regularizer="uniform")[0]
    tensor([0.0000, 0.5000, 0.0000, 0.5000])
    >>> from contraport import pairwise
    >>> pair_weights(torch.eye(2), torch.eye(2), loss=pairwise("linear_pairs"))[0]
    tensor([0., 1., 0., 1.])
    """
    _check_views(z0, z1, "z")
    if loss is None:
        return alpha_cl(temperature, regularizer, p, gamma).plan(z0, z1) * 2 * len(z0)
    is_pairwise = isinstance(loss, Objective) and isinstance(loss.constraint, Free) and isinstance(loss.kernel, Gibbs)
    is_pairwise = is_pairwise and loss.layout == pairwise().layout and loss.kernel.cost == "cosine"
    check(is_pairwise, f"loss: must be a loss of pairwise(..., negatives='both'), got {loss!r}.", "not_pairwise")
    # The weights are the gradient of the loss in the costs.
    cost, n = _CosineCostWithPairOffsetsByOneHot(2 * len(z0)), len(z0)
    indicators = torch.eye(2 * n, dtype=torch.float64)
    views = [torch.cat([normalize(z.double()), rows], 1) for z, rows in zip((z0, z1), indicators.split(n), strict=True)]
    kernel = Gibbs(cost, loss.kernel.temperature)
    value = Objective(loss.layout, kernel, loss.constraint, loss.target, loss.divergence)(*views)
    (gradient,) = torch.autograd.grad(value, [cost.pair_offsets])
    positives = torch.eye(n, dtype=torch.bool).repeat(2, 2)
    return (-2 * n * gradient).masked_fill(positives, 0).to(z0)


class _CosineCostWithPairOffsetsByOneHot(nn.Module):
    """Cosine cost plus an offset per pair, initially zero.

    The gradient of a loss in these parameters is its gradient in the costs.

    Each embedding is followed by the one-hot vector of its row, which selects its offsets.
    """

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.pair_offsets = nn.Parameter(torch.zeros(num_rows, num_rows, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        d = x.shape[1] - len(self.pair_offsets)
        return 1 - x[:, :d] @ y[:, :d].T + x[:, d:] @ self.pair_offsets @ y[:, d:].T


def _build_negated_energy(pair_weights: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Build the loss of alpha-CL for fixed pair weights, which is minus the energy."""
    rows, columns, n = pair_weights.sum(1), pair_weights.sum(0), len(pair_weights) // 2

    def negated_energy(z0: Tensor, z1: Tensor) -> Tensor:
        z = torch.cat([z0, z1])
        attraction = rows @ (z - z.roll(n, 0)).square().sum(1)
        # The weighted squared distances, expanded so that no (2n, 2n) distances are stored.
        repulsion = (rows + columns) @ z.square().sum(1) - 2 * (z * (pair_weights @ z)).sum()
        loss: Tensor = (attraction - repulsion) / (4 * n)
        return loss

    return negated_energy


def _check_views(x0: Tensor, x1: Tensor, letter: str = "x") -> None:
    """Raise `UsageError` unless both views are (n, d) with n >= 2.

    Messages name the views by `letter` and number, such as x0.
    """
    check_points(f"{letter}0", x0, 2)
    check_points(f"{letter}1", x1, 2)
    expected = f"must have shape {tuple(x0.shape)}, as {letter}0"
    check(x0.shape == x1.shape, f"{letter}1: {expected}, got {tuple(x1.shape)}.", "shape")


def _resolve_pair_weights(x0: Tensor, x1: Tensor, alpha: Tensor | None) -> Tensor:
    """Return validated pair weights, (2n, 2n), by default uniform."""
    _check_views(x0, x1)
    if alpha is None:
        alpha = pair_weights(x0.double(), x1.double(), regularizer="uniform")
    n, size = len(x0), (2 * len(x0), 2 * len(x0))
    good = is_dense_real_tensor(alpha) and alpha.shape == size
    check(good, f"alpha: must be a tensor of shape {size}, got {type_and_shape(alpha)}.", "shape")
    alpha = alpha.double()
    same = torch.eye(n, dtype=torch.bool).repeat(2, 2)
    check_all_values("alpha", alpha, torch.isfinite(alpha) & (alpha >= 0), "nonnegative weights")
    check_all_values("alpha", alpha, (alpha == 0) | ~same, "zero between views of one item")
    return alpha


@keep_deprecated_attributes(
    energies="energy_by_iteration", optimum="max_energy", angles="principal_angles_by_iteration"
)
@dataclass(frozen=True, eq=False)
class LinearEncoderResult:
    """Weights, energy and principal angles of a trained linear encoder.

    Attributes:
        weight: weight matrix of the encoder, (k, d).
        energy_by_iteration: energy of the embeddings at the start and after each iteration, (iterations + 1,).
        max_energy: largest possible energy: sum of the k largest eigenvalues of the contrastive covariance.
        principal_angles_by_iteration: principal angles between rows and top eigenvectors, descending, in radians,
            (iterations + 1, k).
    """

    weight: Tensor
    energy_by_iteration: Tensor
    max_energy: float
    principal_angles_by_iteration: Tensor

    def figure(self) -> Figure:
        """Draw, by iteration, the gap to the maximum energy and the angle to top eigenvectors."""
        figure, (left, right) = create_panels(2)
        left.semilogy(1 - self.energy_by_iteration / self.max_energy, color=BLUE)
        left.set(title="energy below the sum of the top eigenvalues", xlabel="iteration", ylabel="relative gap")
        right.semilogy(self.principal_angles_by_iteration[:, 0], color=ORANGE)
        right.set(title="largest angle to the top eigenvectors", xlabel="iteration", ylabel="radians")
        for ax in (left, right):
            ax.title.set_fontsize("medium")
        return figure


def train_linear_encoder(
    x0: Tensor, x1: Tensor, dimensions: int = 2, *, alpha: Tensor | None = None, iterations: int = 200, seed: int = 0
) -> LinearEncoderResult:
    """Train a linear encoder by alpha-CL with fixed pair weights.

    The encoder learns principal components. The rows of the encoder are orthonormal and converge to the top
    eigenvectors of the contrastive covariance.

    Args:
        x0: first views, (n, d).
        x1: second views, (n, d).
        dimensions: k, of the embeddings, at most d.
        alpha: pair weights, as in `contrastive_covariance`.
        iterations: maximum number, of L-BFGS.
        seed: of the initial weights.

    Raises:
        UsageError: as in `contrastive_covariance`, or dimensions is not in 1, ..., d.

    Source: Tian (2022), corollary 2.

    >>> x0 = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
    >>> train_linear_encoder(x0, x0, 2).principal_angles_by_iteration[-1].max().item() < 1e-3
    True
    """
    _check_views(x0, x1)
    d = x0.shape[1]
    check_integer("dimensions", dimensions, most=d)
    x0, x1 = x0.detach().double(), x1.detach().double()
    covariance = contrastive_covariance(x0, x1, alpha)
    loss = _build_negated_energy(_resolve_pair_weights(x0, x1, alpha))
    max_energy = float(covariance.eigenvalues[:dimensions].sum())
    generator = torch_generator("theory.pca", seed)
    free = torch.randn(dimensions, d, generator=generator, dtype=torch.float64).requires_grad_()
    unit = covariance.eigenvalues.abs().max()  # divides the loss, so that L-BFGS's tolerances are relative

    def weight() -> Tensor:
        rows: Tensor = torch.linalg.qr(free.T).Q.T
        return rows

    energies, angles, complement = [], [], covariance.eigenvectors[:, dimensions:]
    for value in iterate_lbfgs([free], lambda: loss(x0 @ weight().T, x1 @ weight().T) / unit, iterations):
        energies.append(-float(unit) * value)
        # From the sines, the parts of the rows outside the eigenspace: cosines lose angles below 1e-8 to rounding.
        sines = torch.linalg.svdvals(weight().detach() @ complement @ complement.T)
        angles.append(sines.clamp(max=1).arcsin())
    return LinearEncoderResult(
        weight().detach(), torch.tensor(energies, dtype=torch.float64), max_energy, torch.stack(angles)
    )


@keep_deprecated_attributes(
    alignments="layer_alignments_by_iteration",
    rank_one_shares="rank_one_shares_by_iteration",
    energies="energy_by_iteration",
    optimum="max_energy",
    direction="top_eigenvector_cosine",
    unevenness="filter_norm_deviation",
    weights="layer_weights",
)
@dataclass(frozen=True, eq=False)
class DeepLinearResult:
    """Weights, energy, rank and alignment of a trained deep linear encoder.

    Attributes:
        layer_weights: weight matrices of the L layers after training, in the order they are applied.
        layer_alignments_by_iteration: |cos| between the first left singular vector of a layer and the first right one
            of the next, (iterations + 1, L - 1).
        rank_one_shares_by_iteration: largest squared singular value of each layer over the sum of all,
            (iterations + 1, L).
        energy_by_iteration: energy of the embeddings at the start and after each iteration, (iterations + 1,).
        max_energy: largest possible energy: largest eigenvalue of the contrastive covariance.
        top_eigenvector_cosine: |cos| between the first layer's first right singular vector and the top eigenvector.
        filter_norm_deviation: largest deviation of a hidden filter's norm |v_l| from 1 / sqrt(n_l); 0 without hidden
            layers.
    """

    layer_weights: tuple[Tensor, ...]
    layer_alignments_by_iteration: Tensor
    rank_one_shares_by_iteration: Tensor
    energy_by_iteration: Tensor
    max_energy: float
    top_eigenvector_cosine: float
    filter_norm_deviation: float

    def figure(self) -> Figure:
        """Draw the energy, and the rank and alignment of the layers, by iteration."""
        figure, (left, middle, right) = create_panels(3)
        left.plot(self.energy_by_iteration, color=BLUE)
        left.axhline(self.max_energy, color=GREY, linestyle="--", label="largest eigenvalue")
        left.set(title="energy", xlabel="iteration")
        left.legend(frameon=False)
        for layer, shares in enumerate(self.rank_one_shares_by_iteration.T):
            middle.plot(shares, color=SERIES_COLORS[layer % len(SERIES_COLORS)], label=f"layer {layer + 1}")
        middle.set(title="rank-one share of each layer")
        for layer, values in enumerate(self.layer_alignments_by_iteration.T):
            label = f"layers {layer + 1} and {layer + 2}"
            right.plot(values, color=SERIES_COLORS[layer % len(SERIES_COLORS)], label=label)
        right.set(title="alignment of neighboring layers")
        for ax in (middle, right):
            ax.set(xlabel="iteration", ylim=(0, 1.05))
            if ax.lines:  # one layer has no neighbors
                ax.legend(frameon=False, loc="lower right")
        return figure


def train_deep_linear_encoder(
    x0: Tensor,
    x1: Tensor,
    widths: Sequence[int] = (8, 8, 8),
    *,
    alpha: Tensor | None = None,
    per_filter: bool = False,
    iterations: int = 300,
    seed: int = 0,
) -> DeepLinearResult:
    """Train a deep linear encoder by alpha-CL with fixed pair weights.

    Its layers align and become rank one.

    Args:
        x0: first views, (n, d).
        x1: second views, (n, d).
        widths: number of outputs of each layer.
        alpha: pair weights, as in `contrastive_covariance`.
        per_filter: normalize each filter of a hidden layer (a row of W_l) to 1 / sqrt(n_l) instead of the layer to 1.
        iterations: maximum number, of L-BFGS.
        seed: of the initial weights.

    Raises:
        UsageError: as in `contrastive_covariance`, or widths is empty or not positive.

    Source: Tian (2022), theorem 3: at every local maximum W_l = v_l v_(l-1)^T; corollary 3: with filters of one length
    the entries of the hidden v_l are +-1 / sqrt(n_l).

    >>> x0 = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
    >>> result = train_deep_linear_encoder(x0, x0, (4, 4))
    >>> values = (result.rank_one_shares_by_iteration, result.layer_alignments_by_iteration)
    >>> [value[-1].min().item() > 0.999 for value in values]
    [True, True]
    """
    _check_views(x0, x1)
    check_nonempty_sequence("widths", widths, "a list of positive integers")
    for width in widths:
        check_integer("widths", width)
    check_boolean("per_filter", per_filter)
    x0, x1 = x0.detach().double(), x1.detach().double()
    covariance = contrastive_covariance(x0, x1, alpha)
    negated_energy = _build_negated_energy(_resolve_pair_weights(x0, x1, alpha))
    unit, generator = covariance.eigenvalues.abs().max(), torch_generator("theory.deep_linear", seed)
    sizes = zip((x0.shape[1], *widths), widths, strict=False)
    free = [torch.randn(o, i, generator=generator, dtype=torch.float64).div(math.sqrt(i * o)) for i, o in sizes]
    for layer in free:
        layer.requires_grad_()

    def layers() -> list[Tensor]:
        norms = [
            layer.norm(dim=1, keepdim=True) * math.sqrt(len(layer)) if per_filter and hidden else layer.norm()
            for layer, hidden in zip(free, [True] * (len(free) - 1) + [False], strict=True)
        ]
        # Normalized inside the loss, so that L-BFGS runs without constraints.
        return [layer / norm for layer, norm in zip(free, norms, strict=True)]

    def loss() -> Tensor:
        z0, z1 = x0, x1
        for layer in layers():
            z0, z1 = (z @ layer.T for z in (z0, z1))
        return negated_energy(z0, z1) / unit

    energies, alignments, shares = [], [], []
    for value in iterate_lbfgs(free, loss, iterations):
        energies.append(-float(unit) * value)
        weights = [layer.detach() for layer in layers()]
        decompositions = [torch.linalg.svd(weight, full_matrices=False) for weight in weights]
        lefts, rights = [one.U[:, 0] for one in decompositions], [one.Vh[0] for one in decompositions]
        shares.append(torch.stack([one.S[0].square() / one.S.square().sum() for one in decompositions]))
        cosines = [(a @ b).abs() for a, b in zip(lefts, rights[1:], strict=False)]
        alignments.append(torch.stack(cosines) if cosines else shares[-1].new_empty(0))
    uneven = [float((left.abs() - 1 / math.sqrt(len(left))).abs().max()) for left in lefts[:-1]]
    return DeepLinearResult(
        tuple(weights),
        torch.stack(alignments),
        torch.stack(shares),
        torch.tensor(energies, dtype=torch.float64),
        float(covariance.eigenvalues[0]),
        float((rights[0] @ covariance.eigenvectors[:, 0]).abs()),
        max(uneven, default=0.0),
    )
