"""Agreement of k-means clusters with the classes, as NMI and ARI."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from contraport.errors import check_integer
from contraport.metrics.intervals import Array, ItemValueArray
from contraport.metrics.pseudovalues import compute_pseudovalues
from contraport.metrics.retrieval_ranks import unit_vectors


def assign_kmeans_clusters(z: Tensor, num_clusters: int) -> Array:
    """Cluster normalized embeddings by k-means, and return each item's cluster, `(n,)`.

    `z` is `(n, d)` and normalized inside. The best of 5 runs is used.

    Raises:
        UsageError: there are fewer items than clusters, or an embedding is not finite.

    >>> assign_kmeans_clusters(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 9.0]]), 2).tolist()
    [1, 0, 0]
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    check_integer("num_clusters", num_clusters)
    points = unit_vectors("z", z, num_clusters).cpu().numpy()
    # A collapsed encoder has fewer distinct points than clusters: no error, as the score shows it.
    with threadpool_limits(1), warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return np.asarray(KMeans(num_clusters, n_init=5, random_state=0).fit_predict(points))


def contingency_table(weights: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the weighted contingency table `(r, c)` of two integer labelings."""
    r, c = (int(codes.max()) + 1 for codes in (rows, columns))
    return weights.new_zeros(r * c).index_add(0, rows * c + columns, weights).reshape(r, c)


def nmi_pseudovalues(labels: Tensor, clusters: Array) -> ItemValueArray:
    """Return each item's jackknife pseudovalue of the normalized mutual information, `(n,)`.

    >>> nmi_pseudovalues(torch.tensor([0, 0, 1, 1]), np.array([1, 1, 0, 0])).mean().item()
    1.0
    """
    rows, columns = labels.unique(return_inverse=True)[1], torch.from_numpy(clusters).long()

    def nmi(weights: Tensor) -> Tensor:
        table = contingency_table(weights, rows, columns) / weights.sum()
        # Zero shares are left out: the slope of the entropy is infinite there.
        positive = (shares[shares > 0] for shares in (table.sum(1), table.sum(0), table))
        of_classes, of_clusters, joint = (-(shares * shares.log()).sum() for shares in positive)
        return 2 * (of_classes + of_clusters - joint) / (of_classes + of_clusters)

    from sklearn.metrics import normalized_mutual_info_score

    value = float(normalized_mutual_info_score(labels.numpy(), clusters))
    return compute_pseudovalues(value, nmi, len(labels))


def ari_pseudovalues(labels: Tensor, clusters: Array) -> ItemValueArray:
    """Return each item's jackknife pseudovalue of the adjusted Rand index, `(n,)`."""
    rows, columns = labels.unique(return_inverse=True)[1], torch.from_numpy(clusters).long()

    def ari(weights: Tensor) -> Tensor:
        table = contingency_table(weights, rows, columns)
        sizes = (table, table.sum(1), table.sum(0), weights.sum())
        both, of_classes, of_clusters, pairs = ((size * (size - 1) / 2).sum() for size in sizes)
        chance = of_classes * of_clusters / pairs
        return (both - chance) / ((of_classes + of_clusters) / 2 - chance)

    from sklearn.metrics import adjusted_rand_score

    value = float(adjusted_rand_score(labels.numpy(), clusters))
    return compute_pseudovalues(value, ari, len(labels))
