"""Implements `contraport cluster`, which groups embedded items by k-means."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport._utils.notebook_tables import format_html_rows
from contraport.errors import check
from contraport.evaluation.split_loading import resolve_device
from contraport.feature_files import Features, as_features
from contraport.metrics.clustering import assign_kmeans_clusters
from contraport.options import keep_deprecated_attributes
from contraport.similarity_search.command_options import CLUSTER_COMMAND_SPEC, ItemClusteringOptions
from contraport.similarity_search.nearest_rows import (
    check_and_normalize_rows,
    evenly_spaced_indices,
    iter_normalized_blocks,
    top_scores_and_indices,
    warn_of_pooled_features,
)
from contraport.similarity_search.output_files import (
    MAX_SECTION_CARDS,
    PAGE_SUFFIXES,
    CardSection,
    ItemCard,
    check_output_path,
    write_cards_page,
    write_items_csv,
)

log = logging.getLogger("contraport.similarity_search")

MAX_KMEANS_INIT_ITEMS = 20_000
"""Maximum number of items for finding the initial centers by k-means; Lloyd's iterations then use all items."""


@keep_deprecated_attributes(typical="typical_names")
class Cluster(NamedTuple):
    """Summary of one cluster with its size, typical items and main class.

    Attributes:
        size: number of items in the cluster.
        typical_names: names of the items nearest to the center of the cluster, with their descriptions.
        class_name: most frequent class in the cluster; None if the items have no classes.
        majority_class_size: number of items of the most frequent class in the cluster.
    """

    size: int
    typical_names: tuple[str, ...]
    class_name: str | None
    majority_class_size: int = 0

    def format_majority_class(self) -> str:
        """Format the most frequent class with its count, or a dash if there are no classes.

        >>> Cluster(32, (), "animals", 10).format_majority_class()
        'animals (10 of 32)'
        """
        return "-" if self.class_name is None else f"{self.class_name} ({self.majority_class_size:,} of {self.size:,})"


class Clusters(NamedTuple):
    """Result of `contraport cluster`, displayed as a table in notebooks.

    Attributes:
        labels: index of the cluster of each item, ``(n,)``.
        clusters: summary of each cluster, from the largest to the smallest.
    """

    labels: np.ndarray
    clusters: tuple[Cluster, ...]

    def format_rows(self) -> list[dict[str, str]]:
        """Format the clusters as rows of a table, one for each cluster."""
        with_class = any(one.class_name is not None for one in self.clusters)
        return [
            {"cluster": str(number), "items": str(one.size)}
            | ({"largest class": one.format_majority_class()} if with_class else {})
            | {"nearest to the center": "; ".join(one.typical_names)}
            for number, one in enumerate(self.clusters)
        ]

    def __str__(self) -> str:
        return f"{pluralize(len(self.clusters), 'cluster')} of {pluralize(len(self.labels), 'item')}"

    def _repr_html_(self) -> str:
        """HTML table of the clusters for notebooks."""
        return format_html_rows(str(self), self.format_rows())


@CLUSTER_COMMAND_SPEC.with_option_parameters
def cluster(arguments: dict[str, Any]) -> Clusters:
    """Cluster items by k-means of their features on the unit sphere.

    The best of five k-means of at most 20,000 items gives the initial centers. Lloyd's iterations over all items
    follow, in blocks, until no item changes its cluster.

    Raises:
        UsageError: an invalid argument, or features that cannot be read.

    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.1, 1.0], [0.0, 3.0]])
    >>> cluster(features, k=2).labels.tolist()
    [1, 0, 1, 0, 0]
    """
    options = ItemClusteringOptions(**arguments)
    features, device = as_features(options.features), resolve_device(options.device)
    limit = min(len(features), MAX_KMEANS_INIT_ITEMS)
    reason = "the number of items" if limit == len(features) else "the sample that finds the centers"
    check(options.k <= limit, f"k: must be at most {limit:,}, {reason}, got {options.k}.")
    warn_of_pooled_features(features.run)
    check_output_path("out", options.out, (".csv",), overwrite=options.overwrite)
    check_output_path("page", options.page, PAGE_SUFFIXES, overwrite=options.overwrite)
    labels, centers = _fit_labels_and_centers(features.features, options.k, device)
    sizes = np.bincount(labels, minlength=options.k)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] > 0]  # equal items leave clusters empty
    rank = np.empty(options.k, dtype=np.int64)
    rank[order] = np.arange(len(order))
    labels, centers = rank[labels], centers[torch.from_numpy(order)]
    if len(order) < options.k:
        log.info("Empty clusters: %s of %s, as too few items differ.", options.k - len(order), options.k)
    members = [np.flatnonzero(labels == number) for number in range(len(order))]
    similarities_and_places = [
        top_scores_and_indices(center, features.features, MAX_SECTION_CARDS, candidate_rows=rows)
        for center, rows in zip(centers, members, strict=True)
    ]
    clusters = [
        _summarize_cluster(features, *one)
        for one in zip(members, (places for _, places in similarities_and_places), strict=True)
    ]
    result = Clusters(labels, tuple(clusters))
    if options.out is not None:
        write_items_csv(options.out, features, "cluster", dict(enumerate(result.labels.tolist())))
    if options.page is not None:
        _write_clusters_page(options.page, features, result, similarities_and_places)
    return result


def _fit_labels_and_centers(features: np.ndarray, num_clusters: int, device: torch.device) -> tuple[np.ndarray, Tensor]:
    """Return each item's k-means cluster, ``(n,)``, and the centers, ``(k, F)``."""
    for _ in iter_normalized_blocks(features, device):  # raises if a feature is not finite
        pass
    sample = check_and_normalize_rows(features[evenly_spaced_indices(len(features), MAX_KMEANS_INIT_ITEMS)], device)
    initial = torch.from_numpy(assign_kmeans_clusters(sample, num_clusters).astype(np.int64))
    centers = sample.new_zeros(num_clusters, features.shape[1]).index_add_(0, initial.to(device), sample)
    centers /= torch.bincount(initial, minlength=num_clusters).clamp(min=1)[:, None].to(device)
    labels = np.full(len(features), -1)
    for _ in range(100):
        before = labels.copy()
        sums, counts = torch.zeros_like(centers), torch.zeros(num_clusters, device=device)
        for first, rows in iter_normalized_blocks(features, device):
            # The nearest center maximizes <x, c> - |c|^2 / 2, which saves the (b, k, F) differences.
            nearest = (rows @ centers.T - centers.square().sum(1) / 2).argmax(1)
            labels[first : first + len(rows)] = nearest.cpu().numpy()
            sums.index_add_(0, nearest, rows)
            counts += torch.bincount(nearest, minlength=num_clusters)
        if np.array_equal(labels, before):
            break
        centers = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centers)
    return labels, centers


def _summarize_cluster(features: Features, members: np.ndarray, central_rows: Tensor) -> Cluster:
    """Summarize a cluster by its size, central items and most frequent class."""
    typical = tuple(map(features.item_name_and_description, central_rows[:3].tolist()))
    if features.labels is None:
        return Cluster(len(members), typical, None)
    classes, counts = np.unique(features.labels[members], return_counts=True)
    example = int(members[np.flatnonzero(features.labels[members] == classes[counts.argmax()])[0]])
    return Cluster(len(members), typical, features.class_name_at(example), int(counts.max()))


def _write_clusters_page(
    path: str | Path, features: Features, result: Clusters, similarities_and_places: list[tuple[Tensor, Tensor]]
) -> None:
    """Write the HTML page of the clusters with their most central items."""
    sections = []
    for number, (one, (similarities, places)) in enumerate(zip(result.clusters, similarities_and_places, strict=True)):
        cards = [
            ItemCard(place, features.item_name_and_description(place), f"{similarity:.3f}")
            for place, similarity in zip(places.tolist(), similarities.tolist(), strict=True)
        ]
        largest = f"largest class: {one.format_majority_class()}" if one.class_name is not None else ""
        size = pluralize(one.size, "item")
        sections.append(CardSection(f"Cluster {number}", cards, (size, largest), one.size - len(cards)))
    lead = "The items of each cluster that are nearest to its center, with their cosine similarity to it."
    write_cards_page(path, features, str(result), lead, sections)
