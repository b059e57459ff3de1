"""Regularized canonical correlation between two views, cross-fitted: the maps of a pair are fitted to other pairs.

Source: Hotelling (1936), Relations between two sets of variates; the ridge is that of Vinod (1976), Canonical ridge and
econometrics of joint production.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FOLDS = 5

RIDGE = 0.05
"""Added to each variance, as a share of their mean: with fewer pairs than dimensions small variances are noise."""

_MIN_RIDGE = 1e-12
"""Keeps the Cholesky factorization defined where all items are equal."""


class LinearMapPair(NamedTuple):
    """Linear maps of both views into one space: ``(F, r)`` for the first view and ``(G, r)`` for the second."""

    first: Tensor
    second: Tensor


class CanonicalMaps(NamedTuple):
    """Cross-fitted canonical maps: a pair of linear maps for each fold, and the fold of each item.

    Attributes:
        feature_means: mean features of the items that the maps are fitted to, ``(F,)`` and ``(G,)``.
        item_folds: fold of each item, int64 ``(n,)``; the maps of an item are fitted to the other folds.
        fold_maps: maps that predict the second view from the first, and the first from the second, for each fold.
    """

    feature_means: tuple[Tensor, Tensor]
    item_folds: Tensor
    fold_maps: tuple[tuple[LinearMapPair, LinearMapPair], ...]


class _SecondMoments(NamedTuple):
    """Number of items, and sums of outer products of their features: within each view, and across views."""

    number: float
    first: Tensor
    second: Tensor
    across: Tensor


def fit_canonical_maps(features: tuple[Tensor, Tensor], pool: Tensor) -> CanonicalMaps:
    """Fit each fold's canonical maps to the pairs of the other folds, restricted to the items `pool`, ``(m,)``.

    With both features whitened, the cross-covariance M has the canonical correlations as its singular values. The first
    view predicts M' x of the second, whose predictable part is M' M y. Directions are weighted by their correlation,
    so uncorrelated ones vanish and no singular vectors are needed.

    >>> u = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    >>> fitted = fit_canonical_maps((u, u.flip(1)), torch.arange(300))
    >>> first, second = fitted.fold_maps[0][0]
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
        parts.append(_SecondMoments(len(x), x.T @ x, y.T @ y, x.T @ y))
    # Moments are additive: those of the other folds are the total less those of the fold.
    total = [sum(sums) for sums in zip(*parts, strict=True)]
    maps = tuple(
        _maps_from_moments(_SecondMoments(*(a - b for a, b in zip(total, part, strict=True)))) for part in parts
    )
    return CanonicalMaps(centers, folds, maps)


def _maps_from_moments(moments: _SecondMoments) -> tuple[LinearMapPair, LinearMapPair]:
    number, first, second, across = moments
    roots = [torch.linalg.cholesky(_add_ridge(products / number)) for products in (first, second)]
    left = torch.linalg.solve_triangular(roots[0], across / number, upper=False)
    correlation = torch.linalg.solve_triangular(roots[1], left.T, upper=False).T
    # The maps act on rows from the right: x L'^-1 whitens x.
    to_second = torch.linalg.solve_triangular(roots[0].T, correlation, upper=True)
    to_first = torch.linalg.solve_triangular(roots[1].T, correlation.T, upper=True)
    return LinearMapPair(to_second, to_first @ correlation), LinearMapPair(to_second @ correlation.T, to_first)


def _add_ridge(covariance: Tensor) -> Tensor:
    ridge = (RIDGE * covariance.diagonal().mean()).clamp(min=_MIN_RIDGE)
    return covariance + ridge * torch.eye(len(covariance), device=covariance.device)
