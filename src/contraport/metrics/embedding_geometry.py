"""Metrics of the geometry of embeddings, such as uniformity and hubness."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check, check_integer
from contraport.metrics.retrieval_ranks import check_labels, check_points, nearest_indices, unit_vectors
from contraport.seeding import torch_generator

MAX_PAIRWISE_METRIC_ITEMS = 10_000
"""Maximum number of items for `uniformity` and `hubness`; beyond it they use a fixed random subset of this size."""

HUBNESS_NEIGHBORS = 10
"""Default number of nearest neighbors of each item that `hubness` counts."""

TRUSTWORTHINESS_NEIGHBORS = 12
"""Default number of nearest neighbors of each item that `trustworthiness` compares."""

MAX_TRUSTWORTHINESS_QUERIES = 2_000
"""Maximum number of items whose neighbors `trustworthiness` compares."""

MAX_PAIRS_IN_MEMORY = 1 << 22
"""Number of pairs that `uniformity` holds in memory at a time: 16 MiB."""


def alignment(z0: Tensor, z1: Tensor) -> float:
    """Return the mean squared distance of two views on the unit sphere.

    0 is perfect, and 4 is the maximum. `z0` and `z1` are `(n, d)` and normalized inside. Wang and Isola, "Understanding
    contrastive representation learning through alignment and uniformity on the hypersphere" (ICML 2020), exponent 2.

    Raises:
        UsageError: the shapes differ, there are no items, or an embedding is not finite.

    >>> alignment(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 5.0]]))
    2.0
    """
    return float(squared_unit_view_distances(z0, z1).mean())


def squared_unit_view_distances(z0: Tensor, z1: Tensor) -> np.ndarray[Any, Any]:
    """Return squared distances of each item's two views on the unit sphere."""
    first, second = unit_vectors("z0", z0, dtype=torch.float64), unit_vectors("z1", z1, dtype=torch.float64)
    check(z0.shape == z1.shape, f"z1: shape must be {tuple(z0.shape)}, got {tuple(z1.shape)}.", "shape")
    return (first - second).square().sum(dim=1).cpu().numpy()


def uniformity(z: Tensor) -> float:
    """Return log mean exp(-2 |zi - zj|^2) over all pairs i < j.

    Lower is more uniform on the unit sphere. `z` is `(n, d)` and normalized inside; rows of zeros stay zero (Wang and
    Isola, ICML 2020). All pairs are used up to `MAX_PAIRWISE_METRIC_ITEMS` items; beyond that, those of a fixed random
    subset of this size. Memory grows with n, not with its square.

    Raises:
        UsageError: there are fewer than two items, or an embedding is not finite.

    >>> round(uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]])), 6)
    -8.0
    """
    points = unit_vectors("z", z, 2)[fixed_subset_positions(len(z)).to(z.device)]
    return math.log(float(mean_gaussian_potential_per_item(points).mean()))


def mean_gaussian_potential_per_item(z: Tensor) -> Tensor:
    """Return each item's mean Gaussian potential with all others, `(n,)`.

    The potential of items i and j is exp(-2 |zi - zj|^2). `z` is `(n, d)`; rows are unit vectors or zero.

    >>> mean_gaussian_potential_per_item(torch.tensor([[1.0, 0.0], [1.0, 0.0]])).tolist()
    [1.0, 1.0]
    """
    sums, lengths = [], z.any(dim=1).to(z)
    for start in range(0, len(z), step := max(1, MAX_PAIRS_IN_MEMORY // len(z))):
        # -2 |a - b|^2 = 4 ab - 2 |a|^2 - 2 |b|^2, with squares of exactly 1 or 0: an encoder that maps all items to 0
        # has collapsed, and must not look uniform.
        rows = slice(start, start + step)
        potentials = (z[rows] @ z.T * 4).sub_(2 * lengths[rows, None]).sub_(2 * lengths).exp_()
        potentials.diagonal(start).zero_()  # an item is not paired with itself
        # In double precision: a float32 sum over many pairs loses digits that the logarithm then shows.
        sums.append(potentials.sum(dim=1, dtype=torch.float64))
    return torch.cat(sums) / (len(z) - 1)


def centered_singular_values(features: Tensor) -> Tensor:
    """Return the singular values of the centered features in descending order, `(F,)`.

    They are float64; `features` is `(n, F)`.

    Raises:
        UsageError: there are no items, or a feature is not finite.

    >>> centered_singular_values(torch.tensor([[3.0, 0.0], [-3.0, 0.0]])).round(decimals=4).tolist()
    [4.2426, 0.0]
    """
    check_points("features", features)
    centered = features.detach().double() - features.detach().double().mean(dim=0)
    # The smaller of the two Gram matrices has all non-zero eigenvalues; the other singular values are zero.
    n, width = centered.shape
    eigenvalues: Tensor = torch.linalg.eigvalsh(centered.T @ centered if width <= n else centered @ centered.T)
    return F.pad(eigenvalues.flip(0).clamp_min(0).sqrt(), (0, width - len(eigenvalues)))


def effective_rank(features: Tensor) -> float:
    """Return the exponential of the entropy of the normalized singular values.

    It is from 1 to F, and 0 for constant features. It estimates how many directions the features use. Roy and Vetterli,
    "The effective rank" (EUSIPCO 2007).

    >>> round(effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])), 3)
    4.0
    """
    return effective_rank_from_spectrum(centered_singular_values(features))


def effective_rank_from_spectrum(singular_values: Tensor) -> float:
    """Return the effective rank of a matrix from its singular values `(F,)`.

    >>> round(effective_rank_from_spectrum(torch.ones(3)), 3)
    3.0
    """
    if singular_values.sum() == 0:
        return 0.0
    return float(torch.special.entr(singular_values / singular_values.sum()).sum().exp())


def tolerance(z: Tensor, labels: Tensor) -> float:
    """Return the mean cosine over all pairs of items that share a class.

    It is 1 if each class is a point, and near 0 if classes are spread. `z` is `(n, d)` and normalized inside. Wang and
    Liu, "Understanding the behavior of contrastive loss" (CVPR 2021), eq. 10. Better uniformity usually lowers it.

    Raises:
        UsageError: no class has two items, or an embedding is not finite.

    >>> tolerance(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1, 0]))
    1.0
    """
    points, sums, sizes, _ = sum_unit_vectors_by_class(z, labels)
    pairs = float((sizes * (sizes - 1)).sum())
    check(pairs > 0, f"labels: some class must have at least 2 items, got {len(labels)} items of as many classes.")
    self_pairs = points.square().sum()  # an item is not paired with itself
    return float((sums.square().sum() - self_pairs) / pairs)


class UnitVectorsWithClassSums(NamedTuple):
    """Unit vectors of items, with their sums and counts by class."""

    points: Tensor
    sums: Tensor
    sizes: Tensor
    item_classes: Tensor


def sum_unit_vectors_by_class(z: Tensor, labels: Tensor) -> UnitVectorsWithClassSums:
    """Normalize embeddings `(n, d)` and sum them by class."""
    z = unit_vectors("z", z, dtype=torch.float64)
    check_labels("labels", labels, len(z))
    codes = labels.to(z.device).unique(return_inverse=True)[1]
    sizes = codes.bincount().double()
    sums = torch.zeros(len(sizes), z.shape[1], dtype=z.dtype, device=z.device).index_add_(0, codes, z)
    return UnitVectorsWithClassSums(z, sums, sizes, codes)


def hubness(z: Tensor, neighbors: int = HUBNESS_NEIGHBORS) -> float:
    """Return the skewness of how often an item is a nearest neighbor of another.

    It is 0 without hubs. `z` is `(n, d)`; similarity is the cosine. In high dimensions a few hubs are near everything,
    which hurts retrieval. Radovanović, Nanopoulos and Ivanović, "Hubs in space" (JMLR 2010), eq. 1. Beyond
    `MAX_PAIRWISE_METRIC_ITEMS` items a fixed random subset of this size is used.

    Raises:
        UsageError: there are no more items than neighbors, or an embedding is not finite.

    >>> hubness(torch.randn(500, 2, generator=torch.Generator().manual_seed(0))) < 1
    True
    """
    check_integer("neighbors", neighbors)
    check_points("z", z)
    check(len(z) > neighbors, f"z: must have more than {neighbors} items, got {len(z)}.")
    subset = fixed_subset_positions(len(z)).to(z.device)
    counts = nearest_indices(z[subset], neighbors).flatten().bincount(minlength=len(subset)).double()
    return 0.0 if (counts == counts[0]).all() else float(weighted_skewness(counts, torch.ones_like(counts)))


def trustworthiness(x: Tensor, z: Tensor, neighbors: int = TRUSTWORTHINESS_NEIGHBORS) -> float:
    """Return the trustworthiness of a map, 1 if all map neighbors are data neighbors.

    The penalty of a neighbor on the map is its rank in the data, by Euclidean distance, minus `neighbors`; 0 if that is
    negative. Beyond `MAX_TRUSTWORTHINESS_QUERIES` items, only the neighbors of a fixed random subset of this size are
    compared.

    Args:
        x: data, (n, d).
        z: map, (n, c).
        neighbors: number of neighbors, below n / 2.

    Raises:
        UsageError: shapes disagree, there are too few items, or a coordinate is not finite.

    Source: Venna and Kaski (2001), Neighborhood preservation in nonlinear projection methods, eq. 1.

    >>> x = torch.arange(10.0)[:, None]
    >>> trustworthiness(x, 3 - x, neighbors=3)
    1.0
    """
    check_integer("neighbors", neighbors)
    check_points("x", x)
    check_points("z", z)
    n = len(x)
    check(len(z) == n, f"z: must have {n} items, as x, got {len(z)}.", "shape")
    check(n > 2 * neighbors, f"z: must have more than {2 * neighbors} items, got {n}.")
    # `cdist` expands squares, which lose small differences of large numbers. Subtracting the median keeps ties exact.
    x, z = (points.double() - points.double().median(0).values for points in (x, z))
    order = torch.randperm(n, generator=torch_generator("metrics.trustworthiness", n))
    rows = order[:MAX_TRUSTWORTHINESS_QUERIES].to(x.device)
    excess = 0.0
    for part in rows.split(max(1, MAX_PAIRS_IN_MEMORY // n)):
        within = torch.arange(len(part), device=x.device)
        far, near = torch.cdist(x[part], x), torch.cdist(z[part], z)
        far[within, part] = near[within, part] = torch.inf
        shown = near.topk(neighbors, largest=False).indices
        ranks = torch.searchsorted(far.sort(dim=1).values, far.gather(1, shown)) + 1
        excess += float((ranks - neighbors).clamp(min=0).sum())
    return 1 - 2 * excess / (len(rows) * neighbors * (2 * n - 3 * neighbors - 1))


def weighted_skewness(values: Tensor, weights: Tensor) -> Tensor:
    """Return the skewness, a scalar tensor, of values `(n,)` with weights `(n,)`.

    >>> round(float(weighted_skewness(torch.tensor([0.0, 0.0, 3.0]), torch.ones(3))), 4)
    0.7071
    """
    shares = weights / weights.sum()
    centered = values - shares @ values
    return (shares @ centered**3) / (shares @ centered**2) ** 1.5


def fixed_subset_positions(num_items: int) -> Tensor:
    """Return the positions of a fixed random subset of items, for pairwise metrics."""
    if num_items <= MAX_PAIRWISE_METRIC_ITEMS:
        return torch.arange(num_items)
    generator = torch_generator("metrics.uniformity", num_items)
    return torch.randperm(num_items, generator=generator)[:MAX_PAIRWISE_METRIC_ITEMS]
