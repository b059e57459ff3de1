"""What each of two views tells of the other, as linear maps that were fitted to other pairs than they judge.

Source: Hotelling (1936), Relations between two sets of variates; the ridge is that of Vinod (1976), Canonical ridge and
econometrics of joint production.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

FOLDS = 5
"""Parts of the pairs, of which each is judged by maps that were fitted to the others."""

RIDGE = 0.05
"""Added to each variance, as a share of their mean: fewer pairs than dimensions tell none of the small ones."""

_LEAST = 1e-12
"""Of the ridge, where all items are equal."""


class Maps(NamedTuple):
    """Linear maps to what one view tells of the other, ``(F, r)`` of the first view's features and ``(G, r)``."""

    first: Tensor
    second: Tensor


class Canonical(NamedTuple):
    """The maps of each fold, and to which fold each item belongs.

    Attributes:
        centers: means of the fitted items, ``(F,)`` and ``(G,)``.
        folds: of each item, int64 ``(n,)``.
        maps: for each fold those to what the first view tells of the second, and to what that tells of the first.
    """

    centers: tuple[Tensor, Tensor]
    folds: Tensor
    maps: tuple[tuple[Maps, Maps], ...]


class _Moments(NamedTuple):
    """Sums over some items of products of their features: among the first, among the second, and across."""

    number: float
    first: Tensor
    second: Tensor
    across: Tensor

    @classmethod
    def of(cls, x: Tensor, y: Tensor) -> _Moments:
        return cls(len(x), x.T @ x, y.T @ y, x.T @ y)


def canonical(features: tuple[Tensor, Tensor], among: Tensor) -> Canonical:
    """Fit the maps of each fold to the pairs of some items, ``(m,)``, that belong to other folds.

    Both features are whitened, so that M, the products across, has the canonical correlations as its singular values.
    What x tells of y is then M' x, and the part of y that can be told so is M' M y: directions count the more, the more
    correlated they are, and those that are not vanish. No singular vectors are needed for that.

    >>> u = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    >>> found = canonical((u, u.flip(1)), torch.arange(300))
    >>> told, part = found.maps[0][0]
    >>> bool(torch.cosine_similarity((u - found.centers[0]) @ told, (u.flip(1) - found.centers[1]) @ part).min() > 0.99)
    True
    """
    items = torch.arange(len(features[0]), device=among.device)
    folds = items % FOLDS
    folds[among] = items[: len(among)] % FOLDS  # so that each has as many of those that maps are fitted to
    centers = (features[0][among].mean(dim=0), features[1][among].mean(dim=0))
    parts = []
    for fold in range(FOLDS):
        part = among[folds[among] == fold]
        parts.append(_Moments.of(features[0][part] - centers[0], features[1][part] - centers[1]))
    whole = [sum(sums) for sums in zip(*parts, strict=True)]
    maps = tuple(_maps(_Moments(*(a - b for a, b in zip(whole, part, strict=True)))) for part in parts)
    return Canonical(centers, folds, maps)


def _maps(moments: _Moments) -> tuple[Maps, Maps]:
    number, first, second, across = moments
    roots = [torch.linalg.cholesky(_ridged(products / number)) for products in (first, second)]
    left = torch.linalg.solve_triangular(roots[0], across / number, upper=False)
    correlated = torch.linalg.solve_triangular(roots[1], left.T, upper=False).T
    # Rows are mapped: x L'^-1 whitens them.
    told = torch.linalg.solve_triangular(roots[0].T, correlated, upper=True)
    told_back = torch.linalg.solve_triangular(roots[1].T, correlated.T, upper=True)
    return Maps(told, told_back @ correlated), Maps(told @ correlated.T, told_back)


def _ridged(covariance: Tensor) -> Tensor:
    ridge = (RIDGE * covariance.diagonal().mean()).clamp(min=_LEAST)
    return covariance + ridge * torch.eye(len(covariance), device=covariance.device)
