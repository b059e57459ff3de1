"""How well the views of an item find one another."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check

COSINES_AT_ONCE = 1 << 24
"""How many cosines are held at a time: 64 MiB."""

ROUNDING = 4e-6
"""Distances of unit vectors that differ by no more are equal. In single precision an encoder moves equal items by a few
1e-7 each, as the order of its sums depends on the place in a batch."""


def ranks(*views: Tensor, shown: Tensor | None = None) -> np.ndarray[Any, Any]:
    """Return which place an item's other view has among those of all items, by the cosine: `(n, k)`, 1 is the first.

    A column for each ordered pair of views, `(n, d)` each, in the order of `itertools.permutations`: by the first of
    the pair the second is looked for. What is equally near, up to the rounding of single precision, counts as nearer:
    embeddings that are all the same are of the last rank, not of the first.

    Args:
        views: embeddings of the same items.
        shown: what each view shows, `(n, views)` whole numbers, equal where two items show the same there, such as one
            image with several captions. It is then one to be found by, and one to be found, and the best of those that
            belong to it counts.

    Raises:
        UsageError: the shapes differ.

    >>> ranks(torch.eye(3), torch.eye(3)[[0, 2, 1]]).tolist()
    [[1, 1], [3, 3], [3, 3]]
    >>> twice = torch.tensor([[0, 0], [0, 1], [1, 2]])
    >>> ranks(torch.eye(3)[[0, 0, 1]], torch.eye(3)[[0, 2, 1]], shown=twice).tolist()
    [[1, 1], [1, 2], [1, 1]]
    """
    check(len(views) > 1, f"views: expected two or more, got {len(views)}.")
    points = [_normalised(views[0], view)[1] for view in views]
    numbers = torch.arange(len(points[0])).expand(len(points), -1) if shown is None else shown.T
    return np.stack(
        [_places(points[v], points[w], numbers[v], numbers[w]) for v, w in ordered_view_pairs(len(points))], axis=1
    )


def ordered_view_pairs(views: int) -> list[tuple[int, int]]:
    """Return the ordered pairs of so many views.

    >>> ordered_view_pairs(2)
    [(0, 1), (1, 0)]
    """
    return list(permutations(range(views), 2))


def log_match_probabilities(z0: Tensor, z1: Tensor, temperature: float) -> np.ndarray[Any, Any]:
    """Return the logarithm of the share that an item's other view has of the softmax over those of all, `(n,)`.

    Of cosines over the temperature, a mean over both directions; minus its mean is the InfoNCE loss on all items.

    Raises:
        UsageError: the shapes differ.

    >>> bool(np.allclose(log_match_probabilities(torch.ones(4, 2), torch.ones(4, 2), 0.1), -np.log(4)))
    True
    """
    a, b = _normalised(z0, z1)

    def one_way(queries: Tensor, keys: Tensor) -> Tensor:
        own = (queries * keys).sum(dim=1) / temperature
        sums = [(chunk @ keys.T / temperature).logsumexp(dim=1) for chunk in queries.split(_rows(keys))]
        return own - torch.cat(sums)

    return ((one_way(a, b) + one_way(b, a)) / 2).cpu().numpy()


def nearest_neighbors(z: Tensor, count: int) -> Tensor:
    """Return the positions `(n, count)` of each item's nearest others of `z` `(n, d)`, by the cosine."""
    z = F.normalize(z.float(), dim=1)
    found, start = [], 0
    for chunk in z.split(_rows(z)):
        cosines = chunk @ z.T
        own = torch.arange(len(chunk), device=z.device)
        cosines[own, own + start] = -torch.inf
        found.append(cosines.topk(count, dim=1).indices)
        start += len(chunk)
    return torch.cat(found)


def _normalised(z0: Tensor, z1: Tensor) -> tuple[Tensor, Tensor]:
    check(z0.ndim == 2 and z0.shape == z1.shape, f"z1: expected shape {tuple(z0.shape)}, got {tuple(z1.shape)}.")
    return F.normalize(z0.double(), dim=1), F.normalize(z1.double(), dim=1)


def _places(queries: Tensor, keys: Tensor, of_queries: Tensor, of_keys: Tensor) -> np.ndarray[Any, Any]:
    """Return for each item the place of the best key that belongs to its query, among the keys that are different."""
    asked, query = _different(of_queries)
    found, key = _different(of_keys)
    queries, keys = queries[asked.to(queries.device)], keys[found.to(keys.device)]
    order = query.argsort(stable=True)  # which keys belong to a query: the items of it are neighbours so
    query_of, key_of = query[order].to(keys.device), key[order].to(keys.device)
    places, start = [], 0
    for chunk in queries.split(_rows(keys)):
        here = (query_of >= start) & (query_of < start + len(chunk))
        own = torch.zeros(len(chunk), len(keys), dtype=torch.bool, device=keys.device)
        own[query_of[here] - start, key_of[here]] = True
        cosines = chunk @ keys.T
        best = cosines.masked_fill(~own, -torch.inf).amax(dim=1, keepdim=True)
        places.append(((cosines >= _tied_with(best)) & ~own).sum(dim=1) + 1)
        start += len(chunk)
    return torch.cat(places).cpu()[query].numpy()


def _tied_with(cosines: Tensor) -> Tensor:
    """Return the least cosines that are equal to these up to rounding.

    The tolerance is one of distances, which rounding moves by as much as the vectors. It moves the cosine of nearly
    equal vectors by the square of that: a fixed tolerance of cosines would tie all of a narrow cone.
    """
    distances = (2 - 2 * cosines).clamp(min=0).sqrt() + ROUNDING
    return 1 - distances.square() / 2


def _different(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Return where each different number stands first, and which of these each is."""
    different, which = torch.unique(numbers, return_inverse=True)
    first = torch.full((len(different),), len(numbers)).scatter_reduce(0, which, torch.arange(len(numbers)), "amin")
    return first, which


def _rows(keys: Tensor) -> int:
    return max(1, COSINES_AT_ONCE // len(keys))
