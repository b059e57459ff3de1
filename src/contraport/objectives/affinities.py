"""Affinities: how near the items of a data set are to each other, as the plan that neighbour embedding wants.

Each item spreads its weight over its nearest others by a Gaussian whose bandwidth gives every item the same number of
effective neighbours, the perplexity. Three times as many neighbours carry most of the weight, so that the plan may be
sparse: O(n perplexity) memory, found a chunk of rows at a time. The exact plan has all pairs, in O(n^2) memory.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contraport.errors import check

SUPPORT = 3
"""How many neighbours an item keeps, in units of the perplexity."""

PAIRS_AT_ONCE = 1 << 22
"""How many distances are held at a time: 32 MiB in double precision."""

_WIDEST = 50.0
_BISECTIONS = 60
"""From e^-50 to e^50 of a row's own scale the precision is found to the last digit."""


@torch.no_grad()
def affinities(x: Tensor, perplexity: float, *, symmetric: bool, exact: bool = False) -> Tensor:
    """Return the plan that neighbour embedding wants: an (n, n) tensor of total mass 1 with an empty diagonal.

    Args:
        x: the data, (n, d), finite.
        perplexity: effective number of neighbours, at least 1 and below n - 1.
        symmetric: average the plan with its transpose, as t-SNE does; else every row has mass 1/n, as in SNE.
        exact: spread each item over all others, in a dense tensor; else over its three times perplexity nearest, in a
            sparse one, whose shares are larger by what the others would have.

    Raises:
        UsageError: the perplexity is outside its range.

    Source: Hinton and Roweis (2002), eq. 1; symmetric, van der Maaten and Hinton (2008), section 3.1; sparse, van der
    Maaten (2014), section 4.1.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> affinities(x, perplexity=1.5, symmetric=True).to_dense().sum().item()
    1.0
    """
    n = len(x)
    good = isinstance(perplexity, int | float) and 1 <= perplexity < n - 1
    check(good, f"perplexity: expected a number from 1 to below n - 1 = {n - 1}, got {perplexity!r}.")
    kept = n - 1 if exact else min(n - 1, math.ceil(SUPPORT * perplexity))
    distances, neighbors = find_nearest(x, kept)
    shares = spread(distances, perplexity) / n
    if exact:
        dense = shares.new_zeros(n, n).scatter_(1, neighbors, shares)
        return (dense + dense.T) / 2 if symmetric else dense
    rows = torch.arange(n, device=x.device)[:, None].expand_as(neighbors)
    plan = torch.sparse_coo_tensor(
        torch.stack([rows, neighbors]).flatten(1), shares.flatten(), (n, n), check_invariants=True
    )
    return ((plan + plan.T) / 2 if symmetric else plan).coalesce()


@torch.no_grad()
def find_nearest(x: Tensor, neighbors: int) -> tuple[Tensor, Tensor]:
    """Return the squared distances and the positions of each item's nearest others, (n, neighbors) both.

    Args:
        x: the data, (n, d).
        neighbors: how many, below n.

    >>> find_nearest(torch.tensor([[0.0], [1.0], [3.0]]), 1)[1].flatten().tolist()
    [1, 0, 1]
    """
    x = x.double()
    found = []
    for rows in torch.arange(len(x), device=x.device).split(max(1, PAIRS_AT_ONCE // len(x))):
        # Differences, not the expanded square: near copies must keep their order.
        distances = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist").square()
        distances[torch.arange(len(rows), device=x.device), rows] = torch.inf
        found.append(distances.topk(neighbors, largest=False))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


@torch.no_grad()
def spread(distances: Tensor, perplexity: float) -> Tensor:
    """Return softmax(-precision_i distances_i) with the precision that gives each row the perplexity, by bisection.

    Where a row has more equal smallest distances than the perplexity, copies of one item say, no precision tells them
    apart: it spreads over them evenly.

    Args:
        distances: squared, (n, k).
        perplexity: exponential of the entropy of a row, at least 1 and below k.

    >>> shares = spread(torch.tensor([[1.0, 2.0, 4.0]]).double(), 2.0)
    >>> round(torch.special.entr(shares).sum().exp().item(), 6)
    2.0
    """
    excess = distances - distances.amin(1, keepdim=True)
    scale = excess.mean(1, keepdim=True)
    excess = excess / torch.where(scale > 0, scale, 1)
    # The logarithm of the precision, in units of the row's mean excess: the entropy falls as it grows.
    low, high = torch.full_like(scale, -_WIDEST), torch.full_like(scale, _WIDEST)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        shares = (-excess * middle.exp()).softmax(1)
        too_wide = torch.special.entr(shares).sum(1, keepdim=True) > math.log(perplexity)
        low, high = torch.where(too_wide, middle, low), torch.where(too_wide, high, middle)
    return shares
