"""How embeddings lie on the sphere: alignment, uniformity, tolerance, hubs and the singular spectrum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check
from contraport.metrics.retrieval import nearest_neighbors
from contraport.seeding import torch_generator

UNIFORMITY_ITEMS = 10_000
"""Above this many items `uniformity` and `hubness` look at a fixed random subset of this many."""

HUB_NEIGHBORS = 10
"""Among how many nearest neighbours `hubness` counts how often an item is."""

PAIRS_AT_ONCE = 1 << 22
"""How many pairs `uniformity` holds at a time: 16 MiB."""


def alignment(z0: Tensor, z1: Tensor) -> float:
    """Return the mean squared distance of the two views' embeddings on the unit sphere: 0 is perfect, 4 the most.

    Both are `(n, d)` and normalised inside. Wang and Isola, "Understanding contrastive representation learning through
    alignment and uniformity on the hypersphere" (ICML 2020), with exponent 2.

    Raises:
        UsageError: the shapes differ, or there are no items.

    >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 5.0]]))
    2.0
    """
    return float(distances(z0, z1).mean())


def distances(z0: Tensor, z1: Tensor) -> np.ndarray[Any, Any]:
    """Return the squared distance of each item's two views on the unit sphere, `(n,)`; `alignment` is their mean."""
    check(z0.ndim == 2 and z0.shape == z1.shape, f"z1: expected shape {tuple(z0.shape)}, got {tuple(z1.shape)}.")
    check(len(z0) > 0, "z0: expected one item or more, got none.")
    between: Tensor = (F.normalize(z0, dim=1) - F.normalize(z1, dim=1)).square().sum(dim=1)
    return between.double().cpu().numpy()


def uniformity(z: Tensor) -> float:
    """Return log mean exp(-2 |zi - zj|^2) over all pairs i < j on the unit sphere: lower is more uniform.

    `z` is `(n, d)` and normalised inside (Wang and Isola, ICML 2020). Every pair counts up to `UNIFORMITY_ITEMS` items;
    of more items a fixed random subset of that size is taken. Memory grows with n, not with its square.

    Raises:
        UsageError: there are fewer than two items.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 6)
    -8.0
    """
    check(z.ndim == 2 and len(z) > 1, f"z: expected (items, features) with two items or more, got {tuple(z.shape)}.")
    return math.log(float(pulls(_some(F.normalize(z.float(), dim=1))).mean()))


def pulls(z: Tensor) -> Tensor:
    """Return the mean of exp(-2 |zi - zj|^2) over all others j of each item of `z` `(n, d)` on the sphere, `(n,)`.

    >>> pulls(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [1.0, 1.0]
    """
    found = []
    for start in range(0, len(z), step := max(1, PAIRS_AT_ONCE // len(z))):
        # On the sphere -2 |a - b|^2 = 4 cos(a, b) - 4.
        potentials = (z[start : start + step] @ z.T * 4 - 4).exp()
        potentials.diagonal(start).zero_()  # an item with itself is no pair
        found.append(potentials.sum(dim=1, dtype=torch.float64))
    return torch.cat(found) / (len(z) - 1)


def spectrum(features: Tensor) -> Tensor:
    """Return the singular values of the centred features `(n, F)`, largest first: `(F,)` float64.

    >>> spectrum(torch.tensor([[3.0, 0.0], [-3.0, 0.0]])).round(decimals=4).tolist()
    [4.2426, 0.0]
    """
    centred = features.double() - features.double().mean(dim=0)
    # Of the smaller of the two products, whose other eigenvalues are the same; further singular values are zero.
    n, width = centred.shape
    eigenvalues: Tensor = torch.linalg.eigvalsh(centred.T @ centred if width <= n else centred @ centred.T)
    return F.pad(eigenvalues.flip(0).clamp_min(0).sqrt(), (0, width - len(eigenvalues)))


def effective_rank(features: Tensor) -> float:
    """Return the exponential of the entropy of the normalised singular values: 1 to F, and 0 for constant features.

    It says how many directions the features use. Roy and Vetterli, "The effective rank" (EUSIPCO 2007).

    >>> round(effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])), 3)
    4.0
    """
    return entropy_rank(spectrum(features))


def entropy_rank(values: Tensor) -> float:
    """Return the effective rank of features whose singular values `(F,)` these are.

    >>> round(entropy_rank(torch.ones(3)), 3)
    3.0
    """
    if values.sum() == 0:
        return 0.0
    shares = values / values.sum()
    return float(torch.special.entr(shares).sum().exp())


def tolerance(z: Tensor, labels: Tensor) -> float:
    """Return the mean cosine of two items of one class: 1 where classes are points, and near 0 where they are spread.

    `z` is `(n, d)` and normalised inside. Wang and Liu, "Understanding the behaviour of contrastive loss" (CVPR 2021),
    eq. 10, over all pairs of two items; uniformity is bought with it.

    Raises:
        UsageError: no class has two items.

    >>> tolerance(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1, 0]))
    1.0
    """
    z = F.normalize(z.double(), dim=1)
    codes = labels.to(z.device).unique(return_inverse=True)[1]
    sizes = codes.bincount().double()
    sums = torch.zeros(len(sizes), z.shape[1], dtype=z.dtype, device=z.device).index_add_(0, codes, z)
    pairs = float((sizes * (sizes - 1)).sum())
    check(pairs > 0, f"labels: expected two items of one class at least, got {len(labels)} items of as many classes.")
    own = z.square().sum()  # each item with itself, which is no pair
    return float((sums.square().sum() - own) / pairs)


def hubness(z: Tensor, neighbors: int = HUB_NEIGHBORS) -> float:
    """Return the skewness of how often an item is among the nearest neighbours of others: 0 without hubs.

    `z` is `(n, d)`, nearness the cosine. In many dimensions a few hubs are near to everything, which spoils retrieval.
    Radovanović, Nanopoulos and Ivanović, "Hubs in space" (JMLR 2010), eq. 1. Of more than `UNIFORMITY_ITEMS` items a
    fixed random subset of that size is taken.

    Raises:
        UsageError: there are no more items than neighbours.

    >>> hubness(torch.randn(500, 2, generator=torch.Generator().manual_seed(0))) < 1
    True
    """
    check(len(z) > neighbors, f"z: expected more than {neighbors} items, got {len(z)}.")
    counts = nearest_neighbors(_some(z), neighbors).flatten().bincount(minlength=min(len(z), UNIFORMITY_ITEMS)).double()
    return 0.0 if (counts == counts[0]).all() else float(skewness(counts, torch.ones_like(counts)))


def skewness(values: Tensor, counts: Tensor) -> Tensor:
    """Return the skewness of values `(n,)` of which each counts `(n,)` times.

    >>> round(float(skewness(torch.tensor([0.0, 0.0, 3.0]), torch.ones(3))), 4)
    0.7071
    """
    shares = counts / counts.sum()
    centred = values - shares @ values
    return (shares @ centred**3) / (shares @ centred**2) ** 1.5


def fixed_subset(items: int) -> Tensor:
    """Return the positions of all items, or of more than `UNIFORMITY_ITEMS` of a fixed random choice of so many."""
    if items <= UNIFORMITY_ITEMS:
        return torch.arange(items)
    return torch.randperm(items, generator=torch_generator("metrics.uniformity", items))[:UNIFORMITY_ITEMS]


def _some(z: Tensor) -> Tensor:
    return z if len(z) <= UNIFORMITY_ITEMS else z[fixed_subset(len(z)).to(z.device)]
