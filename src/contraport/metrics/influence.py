"""What each item does to a number that looks at all of them at once, so that it has an interval like any other.

A number of items that count `(n,)` times each has a slope in each count. Beside the number that all items have when
each counts once, n times the slope is what an item says: the mean of these is the number, and their mean under other
counts is what the number becomes, to first order, as items are drawn again. That is the infinitesimal jackknife (Efron,
"The jackknife, the bootstrap and other resampling plans", 1982, chapter 6). Items that are drawn twice are no pair of
their own here, which would be as near as can be.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.metrics.embedding_geometry import (
    HUB_NEIGHBORS,
    effective_rank,
    fixed_subset,
    hubness,
    pulls,
    skewness,
    tolerance,
    uniformity,
)
from contraport.metrics.retrieval import nearest_neighbors

ItemValues = np.ndarray[Any, Any]


def by_item(value: float, number: Callable[[Tensor], Tensor], items: int) -> ItemValues:
    """Return what each item does to a number, `(items,)`, of which `value` is the mean.

    Args:
        value: the number where each item counts once.
        number: it, of how often each item counts, `(items,)` float64, up to a constant.
        items: how many there are.

    >>> x = torch.tensor([1.0, 2.0, 6.0])
    >>> by_item(3.0, lambda counts: (counts * x).sum() / counts.sum(), 3).round(6).tolist()
    [1.0, 2.0, 6.0]
    """
    counts = torch.ones(items, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (slopes,) = torch.autograd.grad(number(counts), counts)
    return around(value, items * slopes)


def around(value: float, slopes: Tensor) -> ItemValues:
    """Return numbers `(n,)` that lie around a value as slopes do around their mean.

    All are the value where the slopes are none, as with one class or one cluster.
    """
    if not slopes.isfinite().all():
        return np.full(len(slopes), value)
    return np.asarray((value + slopes - slopes.mean()).cpu().numpy())


def uniformity_influence(z: Tensor) -> ItemValues:
    """Return what each item does to `uniformity`, `(n,)`; those beside the fixed subset do nothing.

    >>> z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    >>> bool(abs(uniformity_influence(z).mean() - uniformity(z)) < 1e-6)
    True
    """
    chosen, value = fixed_subset(len(z)), uniformity(z)
    near = pulls(F.normalize(z.float(), dim=1)[chosen.to(z.device)])
    slopes = torch.zeros(len(z), dtype=torch.float64)
    mean = float(near.mean())
    # A pair has two items; those of the subset stand for all.
    slopes[chosen] = 2 * (near.cpu() / mean - 1) * (len(z) / len(chosen)) if mean > 0 else 0.0
    return around(value, slopes)


def tolerance_influence(z: Tensor, labels: Tensor) -> ItemValues:
    """Return what each item does to `tolerance`, `(n,)`."""
    value, z = tolerance(z, labels), F.normalize(z.double(), dim=1).cpu()
    codes = labels.cpu().unique(return_inverse=True)[1]
    sizes = codes.bincount().double()
    sums = torch.zeros(len(sizes), z.shape[1], dtype=z.dtype).index_add_(0, codes, z)
    cosines = (z * sums[codes]).sum(dim=1) - z.square().sum(dim=1)  # with the others of its class, all together
    others = sizes[codes] - 1
    return around(value, 2 * (cosines - value * others) / others.mean())


def effective_rank_influence(features: Tensor) -> ItemValues:
    """Return what each item does to `effective_rank`, `(n,)`."""
    value, x = effective_rank(features), features.double().cpu()
    x = x - x.mean(dim=0)
    # Of the smaller of the two products, whose other eigenvalues are the same.
    if x.shape[1] <= len(x):
        values, vectors = torch.linalg.eigh(x.T @ x)
        squares = (x @ vectors).square()
    else:
        values, vectors = torch.linalg.eigh(x @ x.T)
        squares = vectors.square() * values
    kept = values > 1e-12 * values[-1]
    if not kept.any():
        return np.full(len(x), value)
    lengths = values[kept].sqrt()
    shares = lengths / lengths.sum()
    entropy = torch.special.entr(shares).sum()
    slopes = -value * (shares.log() + entropy) / lengths.sum() / (2 * lengths)
    return around(value, len(x) * squares[:, kept] @ slopes)


def hubness_influence(z: Tensor) -> ItemValues:
    """Return what each item does to `hubness`, `(n,)`, as one that is chosen and as one that chooses."""
    chosen, value = fixed_subset(len(z)), hubness(z)
    nearest = nearest_neighbors(z[chosen.to(z.device)], HUB_NEIGHBORS).cpu()

    def number(counts: Tensor) -> Tensor:
        found = counts.new_zeros(len(chosen)).index_add(0, nearest.flatten(), counts.repeat_interleave(HUB_NEIGHBORS))
        return skewness(found, counts)

    inside = by_item(value, number, len(chosen))
    slopes = torch.zeros(len(z), dtype=torch.float64)
    slopes[chosen] = torch.from_numpy(inside - value) * (len(z) / len(chosen))
    return around(value, slopes)


def table_of(counts: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return how many items are of each row and column, `(r, c)`."""
    r, c = (int(codes.max()) + 1 for codes in (rows, columns))
    return counts.new_zeros(r * c).index_add(0, rows * c + columns, counts).reshape(r, c)


def nmi_influence(value: float, labels: Tensor, found: ItemValues) -> ItemValues:
    """Return what each item does to the normalised mutual information of classes and clusters, `(n,)`."""
    rows, columns = labels.unique(return_inverse=True)[1], torch.from_numpy(found).long()

    def number(counts: Tensor) -> Tensor:
        table = table_of(counts, rows, columns) / counts.sum()
        own, others, both = (_entropy(of) for of in (table.sum(1), table.sum(0), table))
        return 2 * (own + others - both) / (own + others)

    return by_item(value, number, len(labels))


def ari_influence(value: float, labels: Tensor, found: ItemValues) -> ItemValues:
    """Return what each item does to the adjusted Rand index of classes and clusters, `(n,)`."""
    rows, columns = labels.unique(return_inverse=True)[1], torch.from_numpy(found).long()

    def number(counts: Tensor) -> Tensor:
        table = table_of(counts, rows, columns)
        both, own, others, every = (of * (of - 1) / 2 for of in (table, table.sum(1), table.sum(0), counts.sum()))
        chance = own.sum() * others.sum() / every
        return (both.sum() - chance) / ((own.sum() + others.sum()) / 2 - chance)

    return by_item(value, number, len(labels))


def _entropy(shares: Tensor) -> Tensor:
    shares = shares[shares > 0]
    return -(shares * shares.log()).sum()
