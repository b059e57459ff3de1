"""t-SNE objective in O(n) time per iteration, by interpolation on a grid.

The sums over pairs are convolutions of the points with a smooth kernel. Each point is spread to the nodes of a regular
grid by polynomials of degree 5, the grid is convolved by FFT, and the result is interpolated at the points.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from contraport.errors import check

STENCIL_OFFSETS = (-2, -1, 0, 1, 2, 3)
"""Nodes that a point is interpolated from, along an axis: offsets from the last node before the point."""


class GridTSNELoss:
    """Two-dimensional t-SNE objective, KL(P | Q), with a normalizer interpolated on a grid.

    Calling it with an embedding (n, 2) returns KL(P | Q) as a scalar.

    Args:
        affinities: the plan P of the data, sparse (n, n), with an empty diagonal and total mass 1.
        exaggeration: factor of the attraction.

    Source: Linderman et al. (2019), Fast interpolation-based t-SNE for improved visualization of single-cell RNA-seq
    data, section 3. Here the polynomials are of degree 5, and the gradient is that of the interpolated value, so that
    one convolution gives both.

    >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> plan = (1 - torch.eye(3)).double().to_sparse() / 6
    >>> round(GridTSNELoss(plan)(x).item(), 2)
    0.12
    """

    def __init__(self, affinities: Tensor, exaggeration: float = 1.0) -> None:
        self._rows, self._columns = affinities.indices()
        self._masses = affinities.values().float()
        self._exaggeration = exaggeration
        self._negative_entropy = torch.special.xlogy(affinities.values(), affinities.values()).sum().float()

    def __call__(self, embedding: Tensor) -> Tensor:
        differences = embedding[self._rows] - embedding[self._columns]
        attraction = self._masses @ differences.square().sum(1).log1p()
        value: Tensor = self._negative_entropy + self._exaggeration * attraction + _LogNormalizer.apply(embedding)
        return value


class _LogNormalizer(torch.autograd.Function):
    """Autograd function of the log-sum of 1 / (1 + distance^2) over point pairs."""

    @staticmethod
    def forward(ctx: Any, points: Tensor) -> Tensor:
        """Return the log-normalizer of points (n, 2), and save its gradient for backward."""
        low = points.amin(0)
        extent = float((points.amax(0) - low).max())
        # A learning rate that is too high spreads the points, or makes them NaN. A million items extend about 300.
        check(extent <= 1_000, "learning_rate: the map diverged. Choose a lower value.", "diverged")
        # Nodes at most 0.4 apart, as the kernel has width 1, and at least 48 of them along the larger axis. The spacing
        # is halved as often as needed, so that the kernel on the grid is rarely computed again.
        halvings = max(0, math.ceil(math.log2(48 * 0.4 / max(extent, 1e-30))))
        spacing = 0.4 / 2**halvings
        size = 16 * math.ceil((extent / spacing + len(STENCIL_OFFSETS)) / 16)
        positions = (points - low) / spacing - STENCIL_OFFSETS[0]
        before = positions.floor()
        weights, slopes = _compute_lagrange_weights_and_slopes(positions - before)
        nodes = before.long()[:, :, None] + torch.tensor(STENCIL_OFFSETS, device=points.device)
        node = (size * nodes[:, 0, :, None] + nodes[:, 1, None, :]).flatten(1)
        weight = (weights[:, 0, :, None] * weights[:, 1, None, :]).flatten(1)
        grid = points.new_zeros(size * size).index_add_(0, node.flatten(), weight.flatten()).view(size, size)
        # While all points are close, K - 1 is interpolated: in single precision K is constant, without a slope.
        subtracted_constant = 1.0 if extent < 1 else 0.0
        kernel = _compute_kernel_spectrum(size, spacing, subtracted_constant, points.dtype, points.device)
        spectrum = torch.fft.rfft2(grid, s=(2 * size, 2 * size)) * kernel
        field = torch.fft.irfft2(spectrum, s=(2 * size, 2 * size))[:size, :size].reshape(-1)[node]
        n = len(points)
        self_pairs = 1 - subtracted_constant
        total = ((field * weight).sum(1).double() - self_pairs).sum().to(points) + subtracted_constant * n * (n - 1)
        by_axis = field.view(-1, len(STENCIL_OFFSETS), len(STENCIL_OFFSETS))
        slope = torch.stack([
            torch.einsum("nij,ni,nj->n", by_axis, slopes[:, 0], weights[:, 1]),
            torch.einsum("nij,ni,nj->n", by_axis, weights[:, 0], slopes[:, 1]),
        ], dim=1)  # fmt: skip
        # Twice, as a point is both spread to the grid and interpolated from it, with the same weights.
        ctx.save_for_backward(slope * (2 / (spacing * total)))
        value: Tensor = total.log()
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient with respect to the points, (n, 2)."""
        (gradient,) = ctx.saved_tensors
        product: Tensor = gradient * gradients[0]
        return product


@lru_cache(maxsize=2)
def _compute_kernel_spectrum(
    size: int, spacing: float, subtracted_constant: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Subtract a constant from the kernel and Fourier-transform it on a periodic grid."""
    steps = torch.arange(2 * size, dtype=dtype, device=device)
    squares = (torch.minimum(steps, 2 * size - steps) * spacing).square()
    squares = squares[:, None] + squares
    kernel: Tensor = (1 - subtracted_constant - subtracted_constant * squares) / (1 + squares)  # no cancellation for 1
    spectrum: Tensor = torch.fft.rfft2(kernel)
    return spectrum


def _compute_lagrange_weights_and_slopes(fractions: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the six nearest nodes' Lagrange weights, and derivatives of the weights.

    Fractions, ``(...)``, are the positions of points between two nodes, in [0, 1).
    """
    powers = torch.stack([fractions**k for k in range(len(STENCIL_OFFSETS))], dim=-1)
    slopes = torch.stack([k * fractions ** max(k - 1, 0) for k in range(len(STENCIL_OFFSETS))], dim=-1)
    nodes = torch.tensor(STENCIL_OFFSETS).double()
    # Of the Lagrange polynomials of the nodes, (6, 6): by power and node.
    coefficients = torch.linalg.inv(torch.stack([nodes**k for k in range(len(STENCIL_OFFSETS))], dim=1)).to(fractions)
    return powers @ coefficients, slopes @ coefficients
