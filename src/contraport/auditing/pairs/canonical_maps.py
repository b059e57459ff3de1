"""Cross-fitted canonical correlation analysis with a ridge penalty.

Source: Hotelling (1936), Relations between two sets of variates; the ridge is that of Vinod (1976), Canonical ridge and
econometrics of joint production.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport._utils.vector_search import TensorOrComputedRows
from contraport.seeding import torch_generator

NUM_FOLDS = 5

RIDGE = 0.05
"""Ridge on each variance, as a share of their mean: with fewer pairs than dimensions small variances are noise."""

MAX_FITTED_WIDTH = 512
"""Maximum width of features that maps are fitted to; wider ones are projected to this many directions of largest
variance. The time to fit grows with the cube of the width, and more directions than pairs mostly hold noise."""

MAX_VALUES_AT_A_TIME = 2**24
"""Maximum number of values of a block of rows that are read at a time."""


class CanonicalMaps(NamedTuple):
    """Linear maps of two views by cross-fitted canonical correlation analysis.

    Attributes:
        feature_means: mean features of the items that the maps are fitted to, ``(F,)`` and ``(G,)``.
        item_folds: fold of each item, int64 ``(n,)``; the maps of an item are fitted to the other folds.
        fold_maps: linear maps of both views to the canonical directions, ``(F, r)`` and ``(G, r)``, for each fold.
        correlations: canonical correlations, ``(r,)`` for each fold.
    """

    feature_means: tuple[Tensor, Tensor]
    item_folds: Tensor
    fold_maps: tuple[tuple[Tensor, Tensor], ...]
    correlations: tuple[Tensor, ...]


def cross_fit_canonical_maps(
    features: tuple[TensorOrComputedRows, TensorOrComputedRows], pool: Tensor
) -> CanonicalMaps:
    """Fit linear CCA maps of two views for each fold, on the other folds.

    Only pairs in `pool`, ``(m,)``, are used. With both features whitened, the cross-covariance has the canonical
    directions as its singular vectors and their correlations as its singular values. Features wider than
    `MAX_FITTED_WIDTH` are restricted to that many directions of largest variance, shared by the folds; if they vary in
    fewer directions, nothing is lost.

    >>> u = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    >>> fitted = cross_fit_canonical_maps((u, u.flip(1)), torch.arange(300))
    >>> first, second = fitted.fold_maps[0]
    >>> x, y = (u - fitted.feature_means[0]) @ first, (u.flip(1) - fitted.feature_means[1]) @ second
    >>> bool(torch.cosine_similarity(x, y).min() > 0.99)
    True
    """
    items = torch.arange(len(features[0]), device=pool.device)
    folds = items % NUM_FOLDS
    folds[pool] = items[: len(pool)] % NUM_FOLDS  # every fold has equally many of the pairs that maps are fitted to
    widths = (features[0].shape[1], features[1].shape[1])
    # Block by block: all rows of the features may fill the memory, and need not be in it.
    blocks = pool.split(max(1, MAX_VALUES_AT_A_TIME // max(widths)))
    first_sum, second_sum = (
        sum((values[block].sum(dim=0, dtype=torch.float64) for block in blocks), torch.tensor(0.0))
        for values in features
    )
    centers = ((first_sum / len(pool)).float(), (second_sum / len(pool)).float())
    bases = [
        find_principal_directions_if_wide(values, pool, center)
        for values, center in zip(features, centers, strict=True)
    ]
    parts = []
    for fold in range(NUM_FOLDS):
        sums: list[Any] = [0, 0, 0, 0]
        for block in blocks:
            members = block[folds[block] == fold]
            x, y = (
                values[members] - center if basis is None else (values[members] - center) @ basis
                for values, center, basis in zip(features, centers, bases, strict=True)
            )
            sums = [total + more for total, more in zip(sums, (len(x), x.T @ x, y.T @ y, x.T @ y), strict=True)]
        parts.append(sums)
    # Moments are additive: those of the other folds are the total less those of the fold.
    total = [sum(sums) for sums in zip(*parts, strict=True)]
    fitted = [
        _fit_maps_and_correlations(*(a - b for a, b in zip(total, part, strict=True)), feature_widths=widths)
        for part in parts
    ]
    maps, correlations = zip(*fitted, strict=True)
    if any(basis is not None for basis in bases):
        maps = tuple(
            tuple(linear if basis is None else basis @ linear for basis, linear in zip(bases, both, strict=True))
            for both in maps
        )
    return CanonicalMaps(centers, folds, maps, correlations)


def find_width_reduction_note(features: tuple[TensorOrComputedRows, TensorOrComputedRows]) -> str | None:
    """Return a note if features are projected to fewer dimensions, else None."""
    widths = [values.shape[1] for values in features]
    if max(widths) <= MAX_FITTED_WIDTH:
        return None
    sizes = " and ".join(f"{width:,}" for width in widths)
    used = f"{MAX_FITTED_WIDTH} directions of largest variance"
    return f"features of {sizes} numbers: canonical correlations use their {used}"


def find_principal_directions_if_wide(values: TensorOrComputedRows, indices: Tensor, center: Tensor) -> Tensor | None:
    """Return principal directions of the rows, or None if the matrix is narrow.

    They are orthonormal, ``(F, MAX_FITTED_WIDTH)``, fitted to the rows at `indices`; a matrix of at most that width is
    narrow. The directions are approximate, by randomized subspace iteration, but contain all variance of low rank.

    Source: Halko, Martinsson and Tropp (2011), Finding structure with randomness, algorithm 4.4.
    """
    width = values.shape[1]
    if width <= MAX_FITTED_WIDTH:
        return None
    generator = torch_generator("audit.canonical_directions", len(indices), width)
    basis = None
    for _ in range(3):
        product = center.new_zeros(width, MAX_FITTED_WIDTH)
        for block in indices.split(max(1, MAX_VALUES_AT_A_TIME // width)):
            rows = values[block] - center
            if basis is None:
                drawn = torch.randn(len(rows), MAX_FITTED_WIDTH, dtype=rows.dtype, generator=generator).to(rows)
            else:
                drawn = rows @ basis
            product += rows.T @ drawn
        basis = torch.linalg.qr(product).Q
    return basis


def svd_without_negligible_correlations(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return u, singular values and v of a truncated SVD.

    For a matrix ``(F, G)`` the shapes are ``(F, r)``, ``(r,)`` and ``(G, r)``. Values that are negligible for canonical
    correlations are left out. The vectors are eigenvectors of the symmetric product in double precision: a singular
    value decomposition in single precision takes longer, and fails to converge on some matrices whose singular values
    are nearly equal.
    """
    if matrix.shape[0] > matrix.shape[1]:
        v, singular_values, u = svd_without_negligible_correlations(matrix.T)
        return u, singular_values, v
    exact = matrix.double()
    squares, vectors = torch.linalg.eigh(exact @ exact.T)
    # A similarity in canonical space weighs a direction by the third power of its correlation; its variance, by the
    # sixth. Most directions of wide features are noise, and cost as much time as the others: those with a share of the
    # variance of at most 1e-4 are dropped.
    rest = squares.clamp(min=0).pow(3).cumsum(0).flip(0)
    rank = max(1, int((rest > 1e-4 * rest[0]).sum()))
    u = vectors.flip(1)[:, :rank]
    v = exact.T @ u
    values = v.norm(dim=0)
    return u.to(matrix), values.to(matrix), F.normalize(v, dim=0).to(matrix)  # of a zero matrix zeros, not NaN


def _fit_maps_and_correlations(
    num_pairs: int, x_products: Tensor, y_products: Tensor, cross_products: Tensor, *, feature_widths: tuple[int, int]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the maps and correlations of a CCA from ``X'X``, ``Y'Y`` and ``X'Y``."""
    roots = []
    for products, width in zip((x_products, y_products), feature_widths, strict=True):
        covariance = products / num_pairs
        # Of the whole width, which may be more than the covariance has. Equal items have no variance, but need a ridge.
        ridge = (RIDGE * covariance.diagonal().sum() / width).clamp(min=1e-12)
        identity = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
        roots.append(torch.linalg.cholesky(covariance + ridge * identity))
    left = torch.linalg.solve_triangular(roots[0], cross_products / num_pairs, upper=False)
    cross = torch.linalg.solve_triangular(roots[1], left.T, upper=False).T
    u, correlations, v = svd_without_negligible_correlations(cross)
    # The maps act on rows from the right: x L'^-1 whitens x.
    to_first = torch.linalg.solve_triangular(roots[0].T, u, upper=True)
    to_second = torch.linalg.solve_triangular(roots[1].T, v, upper=True)
    return (to_first, to_second), correlations
