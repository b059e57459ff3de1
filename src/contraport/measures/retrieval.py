"""How well the two views of an item find one another."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.errors import check

COSINES_AT_ONCE = 1 << 24
"""How many cosines are held at a time: 64 MiB."""


def ranks(z0: Tensor, z1: Tensor) -> np.ndarray[Any, Any]:
    """Return which place an item's other view has among those of all items, by the cosine: `(n, 2)`, 1 is the first.

    The first column looks for the second view by the first, the second the other way round. `z0` and `z1` are `(n, d)`.
    What is equally near counts as nearer: embeddings that are all the same are of the last rank, not of the first.

    Raises:
        UsageError: the shapes differ.

    >>> ranks(torch.eye(3), torch.eye(3)[[0, 2, 1]]).tolist()
    [[1, 1], [3, 3], [3, 3]]
    """
    a, b = _normalised(z0, z1)
    return np.stack([_places(a, b), _places(b, a)], axis=1)


def log_shares(z0: Tensor, z1: Tensor, temperature: float) -> np.ndarray[Any, Any]:
    """Return the logarithm of the share that an item's other view has of the softmax over those of all, `(n,)`.

    Of cosines over the temperature, a mean over both directions; minus its mean is the InfoNCE loss on all items.

    Raises:
        UsageError: the shapes differ.

    >>> bool(np.allclose(log_shares(torch.ones(4, 2), torch.ones(4, 2), 0.1), -np.log(4)))
    True
    """
    a, b = _normalised(z0, z1)

    def one_way(queries: Tensor, keys: Tensor) -> Tensor:
        own = (queries * keys).sum(dim=1) / temperature
        sums = [(chunk @ keys.T / temperature).logsumexp(dim=1) for chunk in queries.split(_rows(keys))]
        return own - torch.cat(sums)

    return ((one_way(a, b) + one_way(b, a)) / 2).cpu().numpy()


def nearest(z: Tensor, count: int) -> Tensor:
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


def _places(queries: Tensor, keys: Tensor) -> np.ndarray[Any, Any]:
    places, start = [], 0
    for chunk in queries.split(_rows(keys)):
        cosines = chunk @ keys.T
        own = cosines[torch.arange(len(chunk)), torch.arange(start, start + len(chunk))]
        places.append((cosines >= own[:, None]).sum(dim=1))
        start += len(chunk)
    return torch.cat(places).cpu().numpy()


def _rows(keys: Tensor) -> int:
    return max(1, COSINES_AT_ONCE // len(keys))
