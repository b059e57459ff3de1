"""Linear encoders under fixed pair weights: what alpha-CL finds is the principal components of its covariance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contraport.errors import check, is_integer
from contraport.plots.colors import BLUE, GREY, ORANGE, SERIES
from contraport.plots.figure_setup import panels
from contraport.seeding import torch_generator
from contraport.theory.covariance import contrastive_covariance, fixed_weight_loss
from contraport.theory.descent import minimize_lbfgs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class LinearEncoder:
    """A linear encoder with orthonormal rows, trained under fixed weights.

    Attributes:
        weight: (k, d).
        energies: energy at the start and after each iteration.
        optimum: the sum of the k largest eigenvalues of the contrastive covariance.
        angles: (iterations + 1, k), between the space of the rows and that of the top eigenvectors, in radians,
            largest first; the last row is that of `weight`.
    """

    weight: Tensor
    energies: Tensor
    optimum: float
    angles: Tensor

    def figure(self) -> Figure:
        """Draw the way of the energy to its optimum, and that of the largest angle to zero."""
        figure, (left, right) = panels(2)
        left.semilogy(1 - self.energies.numpy() / self.optimum, color=BLUE)
        left.set(title="energy, short of the sum of the top eigenvalues", xlabel="iteration", ylabel="relative gap")
        left.title.set_fontsize("medium")
        right.semilogy(self.angles[:, 0].numpy(), color=ORANGE)
        right.set(title="largest angle to the top eigenvectors", xlabel="iteration", ylabel="radians")
        right.title.set_fontsize("medium")
        return figure


def linear_encoder(
    x0: Tensor,
    x1: Tensor,
    dimensions: int = 2,
    *,
    alpha: Tensor | None = None,
    iterations: int = 200,
    seed: int = 0,
) -> LinearEncoder:
    """Train a linear encoder with orthonormal rows by alpha-CL under fixed weights: it does principal components.

    Args:
        x0: the first views, (n, d).
        x1: the second views, (n, d).
        dimensions: k, of the embeddings, at most d.
        alpha: weights of the pairs, as in `contrastive_covariance`.
        iterations: of L-BFGS at most.
        seed: of the first weights.

    Raises:
        UsageError: as in `contrastive_covariance`, or dimensions is not in 1, ..., d.

    Source: Tian (2022), corollary 2.

    >>> x0 = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
    >>> linear_encoder(x0, x0, 2).angles[-1].max().item() < 1e-3
    True
    """
    d = x0.shape[1]
    good = is_integer(dimensions) and 1 <= dimensions <= d
    check(good, f"dimensions: expected 1 to {d}, the size of the data, got {dimensions!r}.")
    x0, x1 = x0.double(), x1.double()
    covariance, game = contrastive_covariance(x0, x1, alpha), fixed_weight_loss(x0, x1, alpha)
    optimum = float(covariance.eigenvalues[:dimensions].sum())
    random = torch_generator("theory.pca", seed)
    free = torch.randn(dimensions, d, generator=random, dtype=torch.float64).requires_grad_()
    unit = covariance.eigenvalues.abs().max()

    def weight() -> Tensor:
        rows: Tensor = torch.linalg.qr(free.T).Q.T
        return rows

    energies, angles, other = [], [], covariance.eigenvectors[:, dimensions:]
    for value in minimize_lbfgs([free], lambda: game(x0 @ weight().T, x1 @ weight().T) / unit, iterations):
        energies.append(-float(unit) * value)
        # By their sines, the parts of the rows outside the space: the cosines could not tell small angles apart.
        sines = torch.linalg.svdvals(weight().detach() @ other @ other.T)
        angles.append(sines.clamp(max=1).arcsin())
    return LinearEncoder(weight().detach(), torch.tensor(energies, dtype=torch.float64), optimum, torch.stack(angles))


@dataclass(frozen=True, eq=False)
class DeepLinear:
    """A deep linear encoder, each layer of unit Frobenius norm, trained under fixed weights.

    Attributes:
        weights: the layers, first applied first.
        alignments: |v_l . u_(l+1)|: the first left singular vector of a layer against the first right one of
            the next; at the start and after each iteration, (iterations + 1, L - 1).
        rank_one_shares: the largest squared singular value of a layer, of a sum of 1; (iterations + 1, L).
        energies: (iterations + 1,).
        optimum: the largest eigenvalue of the contrastive covariance.
        direction: |cos| of the first layer's first right singular vector with the top eigenvector.
        unevenness: how far the filters of the hidden layers are from taking part alike: the largest difference of an
            entry of v_l, in absolute value, from 1 / sqrt(n_l); 0 with no hidden layer.
    """

    weights: tuple[Tensor, ...]
    alignments: Tensor
    rank_one_shares: Tensor
    energies: Tensor
    optimum: float
    direction: float
    unevenness: float

    def figure(self) -> Figure:
        """Draw the energy, the share of each layer's first singular value and the alignment of neighbouring layers."""
        figure, (left, middle, right) = panels(3)
        left.plot(self.energies.numpy(), color=BLUE)
        left.axhline(self.optimum, color=GREY, linestyle="--", label="largest eigenvalue")
        left.set(title="energy", xlabel="iteration")
        left.legend(frameon=False)
        for layer, shares in enumerate(self.rank_one_shares.T):
            middle.plot(shares.numpy(), color=SERIES[layer % len(SERIES)], label=f"layer {layer + 1}")
        middle.set(title="each layer becomes rank one", xlabel="iteration", ylim=(0, 1.05))
        middle.legend(frameon=False, loc="lower right")
        for layer, alignments in enumerate(self.alignments.T):
            right.plot(
                alignments.numpy(), color=SERIES[layer % len(SERIES)], label=f"layers {layer + 1} and {layer + 2}"
            )
        right.set(title="neighbouring layers align", xlabel="iteration", ylim=(0, 1.05))
        right.legend(frameon=False, loc="lower right")
        return figure


def deep_linear(
    x0: Tensor,
    x1: Tensor,
    widths: Sequence[int] = (8, 8, 8),
    *,
    alpha: Tensor | None = None,
    per_filter: bool = False,
    iterations: int = 300,
    seed: int = 0,
) -> DeepLinear:
    """Train a deep linear encoder by alpha-CL under fixed weights: its layers align and become rank one.

    Args:
        x0: the first views, (n, d).
        x1: the second views, (n, d).
        widths: the outputs of each layer.
        alpha: weights of the pairs, as in `contrastive_covariance`.
        per_filter: give each filter of a hidden layer, a row of W_l, the length 1 / sqrt(n_l), rather than the layer as
            a whole the length 1.
        iterations: of L-BFGS at most.
        seed: of the first weights.

    Raises:
        UsageError: as in `contrastive_covariance`, or widths is empty or not positive.

    Source: Tian (2022), theorem 3: at every local maximum W_l = v_l v_(l-1)^T; corollary 3: with filters of one length
    the entries of the hidden v_l are +-1 / sqrt(n_l).

    >>> x0 = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
    >>> found = deep_linear(x0, x0, (4, 4))
    >>> found.rank_one_shares[-1].min().item() > 0.999, found.alignments[-1].min().item() > 0.999
    (True, True)
    """
    check(len(widths) >= 1 and min(widths) >= 1, f"widths: expected positive integers, got {widths!r}.")
    x0, x1 = x0.double(), x1.double()
    covariance, game = contrastive_covariance(x0, x1, alpha), fixed_weight_loss(x0, x1, alpha)
    unit, generator = covariance.eigenvalues.abs().max(), torch_generator("theory.deep_linear", seed)
    sizes = zip((x0.shape[1], *widths), widths, strict=False)
    free = [torch.randn(o, i, generator=generator, dtype=torch.float64).div(math.sqrt(i * o)) for i, o in sizes]
    for layer in free:
        layer.requires_grad_()

    def layers() -> list[Tensor]:
        by_filter = [per_filter and depth < len(free) - 1 for depth in range(len(free))]
        lengths = [
            layer.norm(dim=1, keepdim=True) * math.sqrt(len(layer)) if each else layer.norm()
            for layer, each in zip(free, by_filter, strict=True)
        ]
        return [layer / length for layer, length in zip(free, lengths, strict=True)]

    def loss() -> Tensor:
        z0, z1 = x0, x1
        for layer in layers():
            z0, z1 = (z @ layer.T for z in (z0, z1))
        return game(z0, z1) / unit

    energies, alignments, shares = [], [], []
    for value in minimize_lbfgs(free, loss, iterations):
        energies.append(-float(unit) * value)
        weights = [layer.detach() for layer in layers()]
        lefts, rights, squares = zip(*map(_leading, weights), strict=True)
        shares.append(torch.stack(squares))
        alignments.append(torch.stack([(a @ b).abs() for a, b in zip(lefts, rights[1:], strict=False)]))
    uneven = [float((left.abs() - 1 / math.sqrt(len(left))).abs().max()) for left in lefts[:-1]]
    direction = float((rights[0] @ covariance.eigenvectors[:, 0]).abs())
    return DeepLinear(
        tuple(weights),
        torch.stack(alignments),
        torch.stack(shares),
        torch.tensor(energies, dtype=torch.float64),
        float(covariance.eigenvalues[0]),
        direction,
        max(uneven, default=0.0),
    )


def _leading(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first left and right singular vectors, and the share of their squared singular value."""
    left, values, right = torch.linalg.svd(weight.detach(), full_matrices=False)
    return left[:, 0], right[0], values[0].square() / values.square().sum()
