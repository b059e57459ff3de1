"""How embeddings lie on the sphere, without labels: alignment, uniformity and the singular spectrum."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check

UNIFORMITY_ITEMS = 10_000
"""Above this many items `uniformity` looks at a fixed random subset of this many."""

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
    check(z0.ndim == 2 and z0.shape == z1.shape, f"z1: expected shape {tuple(z0.shape)}, got {tuple(z1.shape)}.")
    check(len(z0) > 0, "z0: expected one item or more, got none.")
    return float((F.normalize(z0, dim=1) - F.normalize(z1, dim=1)).square().sum(dim=1).mean())


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
    z = F.normalize(z.float(), dim=1)
    if len(z) > UNIFORMITY_ITEMS:
        z = z[torch.randperm(len(z), generator=torch.Generator().manual_seed(0))[:UNIFORMITY_ITEMS].to(z.device)]
    step = max(1, PAIRS_AT_ONCE // len(z))
    total = 0.0
    for start in range(0, len(z), step):
        # On the sphere -2 |a - b|^2 = 4 cos(a, b) - 4; columns begin at `start`, so the upper triangle is i < j.
        potentials = (z[start : start + step] @ z[start:].T * 4 - 4).exp().triu(diagonal=1)
        total += float(potentials.sum(dtype=torch.float64))
    return math.log(total / (len(z) * (len(z) - 1) / 2))


def spectrum(features: Tensor) -> Tensor:
    """Return the singular values of the centred features `(n, F)`, largest first: `(F,)` float64.

    >>> spectrum(torch.tensor([[3.0, 0.0], [-3.0, 0.0]])).round(decimals=4).tolist()
    [4.2426, 0.0]
    """
    centred = features.double() - features.double().mean(dim=0)
    eigenvalues: Tensor = torch.linalg.eigvalsh(centred.T @ centred)
    return eigenvalues.flip(0).clamp_min(0).sqrt()


def effective_rank(features: Tensor) -> float:
    """Return the exponential of the entropy of the normalised singular values: 1 to F, and 0 for constant features.

    It says how many directions the features use. Roy and Vetterli, "The effective rank" (EUSIPCO 2007).

    >>> round(effective_rank(torch.cat([torch.eye(4), -torch.eye(4)])), 3)
    4.0
    """
    values = spectrum(features)
    if values.sum() == 0:
        return 0.0
    shares = values / values.sum()
    return float(torch.special.entr(shares).sum().exp())
