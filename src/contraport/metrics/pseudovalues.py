"""Pseudovalues per item, for bootstrapping metrics that are not item means.

Such a metric is a function of weights `(n,)`, all 1 for the plain value. Its slope in the weight of item i, times n and
added to the value, is the pseudovalue of item i. The mean of the pseudovalues is the metric, and their mean
under bootstrap counts is, to first order, the metric of the resampled items. This is the infinitesimal jackknife
(Efron, "The jackknife, the bootstrap and other resampling plans", 1982, chapter 6). Resampling itself would pair an
item with its own copies, at distance zero.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from contraport.metrics.embedding_geometry import (
    HUBNESS_NEIGHBORS,
    effective_rank,
    fixed_subset_positions,
    hubness,
    mean_gaussian_potential_per_item,
    sum_unit_vectors_by_class,
    tolerance,
    uniformity,
    weighted_skewness,
)
from contraport.metrics.intervals import ItemValueArray
from contraport.metrics.retrieval_ranks import nearest_indices, unit_vectors


def compute_pseudovalues(
    value: float, weighted_statistic: Callable[[Tensor], Tensor], num_items: int
) -> ItemValueArray:
    """Return pseudovalues `(items,)` from a statistic's gradient in the item weights.

    The mean of the pseudovalues is `value`.

    Args:
        value: the statistic with all weights 1.
        weighted_statistic: the statistic as a function of the item weights `(items,)` float64, up to a constant.
        num_items: number of items.

    >>> x = torch.tensor([1.0, 2.0, 6.0])
    >>> compute_pseudovalues(3.0, lambda weights: (weights * x).sum() / weights.sum(), 3).round(6).tolist()
    [1.0, 2.0, 6.0]
    """
    weights = torch.ones(num_items, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(weighted_statistic(weights), weights)
    return recenter_pseudovalues(value, num_items * slopes)


def recenter_pseudovalues(mean: float, pseudovalues: Tensor) -> ItemValueArray:
    """Shift pseudovalues `(n,)` so that their mean is `mean`.

    If one of them is not finite, all become this mean.
    """
    if not pseudovalues.isfinite().all():
        return np.full(len(pseudovalues), mean)
    return np.asarray((mean + pseudovalues - pseudovalues.mean()).cpu().numpy())


def compute_uniformity_pseudovalues(z: Tensor) -> ItemValueArray:
    """Return each item's jackknife pseudovalue of the metric `uniformity`, `(n,)`.

    >>> z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> bool(abs(compute_uniformity_pseudovalues(z).mean() - uniformity(z)) < 1e-6)
    True
    """
    value, subset = uniformity(z), fixed_subset_positions(len(z))
    potentials = mean_gaussian_potential_per_item(unit_vectors("z", z)[subset.to(z.device)])
    slopes = torch.zeros(len(z), dtype=torch.float64)
    mean = float(potentials.mean())
    # Factor 2: each pair has two items. Factor n / subset: the items of the subset stand for all.
    slopes[subset] = 2 * (potentials.cpu() / mean - 1) * (len(z) / len(subset)) if mean > 0 else 0.0
    return recenter_pseudovalues(value, slopes)


def compute_tolerance_pseudovalues(z: Tensor, labels: Tensor) -> ItemValueArray:
    """Return each item's jackknife pseudovalue of the metric `tolerance`, `(n,)`."""
    value = tolerance(z, labels)
    points, sums, sizes, codes = (part.cpu() for part in sum_unit_vectors_by_class(z, labels))
    cosine_sums = (points * sums[codes]).sum(dim=1) - points.square().sum(dim=1)  # with the others of its class
    others = sizes[codes] - 1
    return recenter_pseudovalues(value, 2 * (cosine_sums - value * others) / others.mean())


def compute_effective_rank_pseudovalues(features: Tensor) -> ItemValueArray:
    """Return each item's jackknife pseudovalue of the metric `effective_rank`, `(n,)`."""
    value, x = effective_rank(features), features.detach().double().cpu()
    x = x - x.mean(dim=0)
    # The smaller of the two Gram matrices has all non-zero eigenvalues.
    if x.shape[1] <= len(x):
        eigenvalues, vectors = torch.linalg.eigh(x.T @ x)
        squares = (x @ vectors).square()
    else:
        eigenvalues, vectors = torch.linalg.eigh(x @ x.T)
        squares = vectors.square() * eigenvalues
    positive = eigenvalues > 1e-12 * eigenvalues[-1]  # the slope of a zero singular value is infinite
    if not positive.any():
        return np.full(len(x), value)
    singular_values = eigenvalues[positive].sqrt()
    total = singular_values.sum()
    shares = singular_values / total
    slopes = -value * (shares.log() + torch.special.entr(shares).sum()) / total / (2 * singular_values)
    return recenter_pseudovalues(value, len(x) * squares[:, positive] @ slopes)


def compute_hubness_pseudovalues(z: Tensor) -> ItemValueArray:
    """Return each item's jackknife pseudovalue of the metric `hubness`, `(n,)`."""
    value, subset = hubness(z), fixed_subset_positions(len(z))
    nearest = nearest_indices(z[subset.to(z.device)], HUBNESS_NEIGHBORS).cpu()

    def weighted_hubness(weights: Tensor) -> Tensor:
        votes = weights.repeat_interleave(HUBNESS_NEIGHBORS)
        return weighted_skewness(weights.new_zeros(len(subset)).index_add(0, nearest.flatten(), votes), weights)

    inside = compute_pseudovalues(value, weighted_hubness, len(subset))
    slopes = torch.zeros(len(z), dtype=torch.float64)
    slopes[subset] = torch.from_numpy(inside - value) * (len(z) / len(subset))
    return recenter_pseudovalues(value, slopes)
