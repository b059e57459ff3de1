"""How well the classes are found without labels, by k-means."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from threadpoolctl import threadpool_limits
from torch import Tensor


def clusters(z: Tensor, count: int) -> np.ndarray[Any, Any]:
    """Return the cluster of each item of `z` `(n, d)`, normalised to the unit sphere, `(n,)`: the best of 5 k-means.

    >>> import torch
    >>> clusters(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 9.0]]), 2).tolist()
    [1, 0, 0]
    """
    # Fewer distinct points than clusters, as a collapsed encoder has, are no mistake here: the score tells it.
    with threadpool_limits(1), warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        found = KMeans(count, n_init=5, random_state=0).fit_predict(F.normalize(z.float(), dim=1).cpu().numpy())
    return np.asarray(found)


def shared_information(labels: Tensor, found: np.ndarray[Any, Any]) -> float:
    """Return the normalised mutual information of classes and clusters: 1 where they are the same, 0 by chance at best.

    >>> import torch
    >>> shared_information(torch.tensor([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    """
    return float(normalized_mutual_info_score(labels.numpy(), found))


def agreement(labels: Tensor, found: np.ndarray[Any, Any]) -> float:
    """Return the adjusted Rand index of classes and clusters: 1 where they are the same, 0 by chance on average.

    >>> import torch
    >>> agreement(torch.tensor([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    """
    return float(adjusted_rand_score(labels.numpy(), found))
