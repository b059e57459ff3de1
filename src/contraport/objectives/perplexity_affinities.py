"""Perplexity-calibrated affinities, the target plan of SNE and t-SNE.

Each item distributes its weight over others by a Gaussian whose bandwidth gives every item the same effective number of
neighbors, the perplexity. Three times as many neighbors carry most of the weight, so that the plan may be sparse: O(n
perplexity) memory, computed for a chunk of rows at a time. The exact plan has all pairs, in O(n^2) memory.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contraport.errors import check, is_number

MAX_DISTANCES_IN_MEMORY = 1 << 22
"""Largest number of distances in memory at a time: 32 MiB in double precision."""


@torch.no_grad()
def compute_affinity_plan(x: Tensor, perplexity: float, *, symmetric: bool, dense: bool = False) -> Tensor:
    """Return SNE or t-SNE affinities, a plan (n, n) of total mass 1.

    Args:
        x: the data, (n, d), finite.
        perplexity: effective number of neighbors, at least 1 and below n - 1.
        symmetric: average the plan with its transpose, as t-SNE does; else every row has mass 1/n, as in SNE.
        dense: distribute each item over all others, in a dense tensor; else over its 3 x perplexity nearest, in a
            sparse one, whose shares are larger by what the others would have.

    Raises:
        UsageError: the perplexity is out of range.

    Source: Hinton and Roweis (2002), eq. 1; symmetric, van der Maaten and Hinton (2008), section 3.1; sparse, van der
    Maaten (2014), section 4.1.

    >>> x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> compute_affinity_plan(x, perplexity=1.5, symmetric=True).to_dense().sum().item()
    1.0
    """
    n = len(x)
    good = is_number(perplexity) and 1 <= perplexity < n - 1
    check(good, f"perplexity: must be at least 1 and below n - 1 = {n - 1}, got {perplexity!r}.")
    count = n - 1 if dense else min(n - 1, math.ceil(3 * perplexity))
    squared_distances, neighbors = nearest_squared_distances_and_indices(x, count)
    shares = row_softmax_of_perplexity(squared_distances, perplexity) / n
    if dense:
        plan = shares.new_zeros(n, n).scatter_(1, neighbors, shares)
        return (plan + plan.T) / 2 if symmetric else plan
    rows = torch.arange(n, device=x.device)[:, None].expand_as(neighbors)
    indices = torch.stack([rows, neighbors]).flatten(1)
    plan = torch.sparse_coo_tensor(indices, shares.flatten(), (n, n), check_invariants=True)
    return ((plan + plan.T) / 2 if symmetric else plan).coalesce()


@torch.no_grad()
def nearest_squared_distances_and_indices(x: Tensor, num_neighbors: int) -> tuple[Tensor, Tensor]:
    """Return squared distances and indices of nearest neighbors, (n, num_neighbors) each.

    Args:
        x: the data, (n, d).
        num_neighbors: number of neighbors, below n.

    >>> nearest_squared_distances_and_indices(torch.tensor([[0.0], [1.0], [3.0]]), 1)[1].flatten().tolist()
    [1, 0, 1]
    """
    x = x.double()
    x = x - x.mean(0)  # for the rounding errors of the expanded square, which only chooses the neighbors
    squares, chunks = x.square().sum(1), []
    at_once = max(1, MAX_DISTANCES_IN_MEMORY // max(len(x), num_neighbors * x.shape[1]))
    for rows in torch.arange(len(x), device=x.device).split(at_once):
        expanded = torch.addmm(squares, x[rows], x.T, alpha=-2)
        expanded[torch.arange(len(rows), device=x.device), rows] = torch.inf
        chosen = expanded.topk(num_neighbors, largest=False).indices
        # Differences rather than the expanded square, whose rounding errors exceed the distances of near duplicates.
        distances, order = (x[rows, None] - x[chosen]).square().sum(2).sort(1)
        chunks.append((distances, chosen.gather(1, order)))
    return torch.cat([distances for distances, _ in chunks]), torch.cat([chosen for _, chosen in chunks])


@torch.no_grad()
def row_softmax_of_perplexity(squared_distances: Tensor, perplexity: float) -> Tensor:
    """Return each row's softmax of negative squared distances, with a given perplexity.

    If a row has more equal smallest distances than the perplexity, as with duplicates, it distributes evenly over them.

    Args:
        squared_distances: (n, k).
        perplexity: exponential of the entropy of a row, at least 1 and below k.

    >>> shares = row_softmax_of_perplexity(torch.tensor([[1.0, 2.0, 4.0]]).double(), 2.0)
    >>> round(torch.special.entr(shares).sum().exp().item(), 6)
    2.0
    """
    excess = squared_distances - squared_distances.amin(1, keepdim=True)
    scale = excess.mean(1, keepdim=True)
    excess = excess / torch.where(scale > 0, scale, 1)
    # The entropy decreases with the log-precision.
    low, high = torch.full_like(scale, -50.0), torch.full_like(scale, 50.0)
    # Sixty halvings determine the last bit. A test of convergence would synchronize with the device.
    for _ in range(60):
        middle = (low + high) / 2
        shares = (-excess * middle.exp()).softmax(1)
        too_wide = torch.special.entr(shares).sum(1, keepdim=True) > math.log(perplexity)
        low, high = torch.where(too_wide, middle, low), torch.where(too_wide, high, middle)
    return shares
