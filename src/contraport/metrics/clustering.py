"""Clustering metrics: k-means clusters of features, compared with the classes."""

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


def kmeans_clusters(z: Tensor, count: int) -> np.ndarray[Any, Any]:
    """Return the k-means cluster of each item of `z` `(n, d)`, normalized to the unit sphere, `(n,)`: best of 5 runs.

    >>> import torch
    >>> kmeans_clusters(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 9.0]]), 2).tolist()
    [1, 0, 0]
    """
    # A collapsed encoder has fewer distinct points than clusters: no error, as the score shows it.
    with threadpool_limits(1), warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        points = F.normalize(z.float(), dim=1).cpu().numpy()
        return np.asarray(KMeans(count, n_init=5, random_state=0).fit_predict(points))


def normalized_mutual_information(labels: Tensor, clusters: np.ndarray[Any, Any]) -> float:
    """Return the normalized mutual information of classes and clusters: 1 if they are the same.

    >>> import torch
    >>> normalized_mutual_information(torch.tensor([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    """
    return float(normalized_mutual_info_score(labels.numpy(), clusters))


def adjusted_rand_index(labels: Tensor, clusters: np.ndarray[Any, Any]) -> float:
    """Return the adjusted Rand index of classes and clusters: 1 if they are the same, 0 by chance on average.

    >>> import torch
    >>> adjusted_rand_index(torch.tensor([0, 0, 1, 1]), np.array([1, 1, 0, 0]))
    1.0
    """
    return float(adjusted_rand_score(labels.numpy(), clusters))
