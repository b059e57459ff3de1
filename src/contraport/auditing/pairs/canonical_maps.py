"""Cross-fitted, regularized canonical correlation analysis: each pair is mapped by maps fitted to other pairs.

Source: Hotelling (1936), Relations between two sets of variates; the ridge is that of Vinod (1976), Canonical ridge and
econometrics of joint production.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

FOLDS = 5

RIDGE = 0.05
"""Ridge on each variance, as a share of their mean: with fewer pairs than dimensions small variances are noise."""

_MIN_RIDGE = 1e-12
"""Minimum ridge, which keeps the Cholesky factorization defined where all items are equal."""

NEGLIGIBLE_VARIANCE = 1e-4
"""Maximum share of dropped directions in the variance of the similarities in canonical space."""


class CanonicalMaps(NamedTuple):
    """Cross-fitted canonical maps: a pair of linear maps for each fold, and the fold of each item.

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


def fit_canonical_maps(features: tuple[Tensor, Tensor], pool: Tensor) -> CanonicalMaps:
    """Fit each fold's canonical maps to the pairs of the other folds, restricted to the items `pool`, ``(m,)``.

    With both features whitened, the cross-covariance has the canonical directions as its singular vectors and their
    correlations as its singular values.

    >>> u = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    >>> fitted = fit_canonical_maps((u, u.flip(1)), torch.arange(300))
    >>> first, second = fitted.fold_maps[0]
    >>> x, y = (u - fitted.feature_means[0]) @ first, (u.flip(1) - fitted.feature_means[1]) @ second
    >>> bool(torch.cosine_similarity(x, y).min() > 0.99)
    True
    """
    items = torch.arange(len(features[0]), device=pool.device)
    folds = items % FOLDS
    folds[pool] = items[: len(pool)] % FOLDS  # every fold has equally many of the pairs that maps are fitted to
    centers = (features[0][pool].mean(dim=0), features[1][pool].mean(dim=0))
    parts = []
    for fold in range(FOLDS):
        part = pool[folds[pool] == fold]
        x, y = features[0][part] - centers[0], features[1][part] - centers[1]
        parts.append((len(x), x.T @ x, y.T @ y, x.T @ y))
    # Moments are additive: those of the other folds are the total less those of the fold.
    total = [sum(sums) for sums in zip(*parts, strict=True)]
    fitted = [_fit_maps_from_moments(*(a - b for a, b in zip(total, part, strict=True))) for part in parts]
    maps, correlations = zip(*fitted, strict=True)
    return CanonicalMaps(centers, folds, maps, correlations)


def _fit_maps_from_moments(
    number: Any, first: Tensor, second: Tensor, across: Tensor
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    roots = [torch.linalg.cholesky(_add_ridge(products / number)) for products in (first, second)]
    left = torch.linalg.solve_triangular(roots[0], across / number, upper=False)
    cross = torch.linalg.solve_triangular(roots[1], left.T, upper=False).T
    u, correlations, v = torch.linalg.svd(cross, full_matrices=False)
    # A similarity in canonical space weighs a direction by the third power of its correlation; its variance, by the
    # sixth. Most directions of wide features are noise, and cost as much time as the others.
    weights = correlations.double() ** 6
    rest = weights.flip(0).cumsum(0).flip(0)
    kept = max(1, int((rest > NEGLIGIBLE_VARIANCE * rest[0]).sum()))
    # The maps act on rows from the right: x L'^-1 whitens x.
    to_first = torch.linalg.solve_triangular(roots[0].T, u[:, :kept], upper=True)
    to_second = torch.linalg.solve_triangular(roots[1].T, v[:kept].T, upper=True)
    return (to_first, to_second), correlations[:kept]


def _add_ridge(covariance: Tensor) -> Tensor:
    ridge = (RIDGE * covariance.diagonal().mean()).clamp(min=_MIN_RIDGE)
    return covariance + ridge * torch.eye(len(covariance), device=covariance.device)
