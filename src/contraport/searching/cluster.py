"""`cluster`: items that belong together, by k-means of their features."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport._utils.files import write_csv
from contraport._utils.formatting import pluralize
from contraport._utils.html_repr import format_html_rows
from contraport.errors import check, check_new_file, report_write_errors
from contraport.evaluation.split_loading import resolve_device
from contraport.features import Features, as_features
from contraport.metrics.clustering import kmeans_clusters
from contraport.searching.block_search import blocks, find_most_similar
from contraport.searching.config import CLUSTER, ClusterOptions
from contraport.searching.page import PICTURES_OF_GROUP, CardGroup, Contents, ItemCard, prepare_page

SAMPLED = 20_000
"""From so many items, spread evenly, the first centres are found; all items then move them."""

PASSES = 100
SHOWN = 3


class Cluster(NamedTuple):
    """One of the clusters.

    Attributes:
        items: how many it has.
        typical: the names of those that are nearest to its centre.
        class_name: the class that more of them are of than of any other, or None.
        of_class: how many are of it.
    """

    items: int
    typical: tuple[str, ...]
    class_name: str | None
    of_class: int = 0

    @property
    def largest_class(self) -> str:
        """The class that more of its items are of than of any other, and how many; a dash where there are no classes.

        >>> Cluster(32, (), "animals", 10).largest_class
        'animals (10 of 32)'
        """
        return "-" if self.class_name is None else f"{self.class_name} ({self.of_class:,} of {self.items:,})"


class Clusters(NamedTuple):
    """All clusters, the largest first; a notebook shows them as a table.

    Attributes:
        numbers: the cluster of each item, ``(n,)``.
        clusters: what each is like.
    """

    numbers: np.ndarray
    clusters: tuple[Cluster, ...]

    def rows(self) -> list[dict[str, str]]:
        """Return what is known of each as texts."""
        with_class = any(one.class_name is not None for one in self.clusters)
        return [
            {"cluster": str(number), "items": str(one.items)}
            | ({"largest class": one.largest_class} if with_class else {})
            | {"nearest to the centre": ", ".join(one.typical)}
            for number, one in enumerate(self.clusters)
        ]

    def __str__(self) -> str:
        return f"{pluralize(len(self.clusters), 'cluster')} of {pluralize(len(self.numbers), 'item')}"

    def _repr_html_(self) -> str:
        return format_html_rows(str(self), self.rows())


@CLUSTER.with_signature
def cluster(given: dict[str, Any]) -> Clusters:
    """Return clusters of items by k-means of their features on the unit sphere.

    The best of five k-means of at most 20,000 items gives the centres that Lloyd's iterations over all items begin
    with, a block at a time, until no item moves.

    Raises:
        UsageError: a wrong argument, or features that cannot be read.

    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.1], [0.1, 1.0], [0.0, 3.0]])
    >>> cluster(features, k=2).numbers.tolist()
    [1, 0, 1, 0, 0]
    """
    asked = ClusterOptions(**given)
    features, device = as_features(asked.features), resolve_device(asked.device)
    check(asked.k <= len(features), f"k: expected at most the {len(features)} items, got {asked.k}.")
    check(asked.k <= SAMPLED, f"k: expected at most {SAMPLED:,}, as the centres are found from so many, got {asked.k}.")
    out = None if asked.out is None else Path(asked.out)
    if out is not None:
        check(out.suffix == ".csv", f"out: expected a name that ends in .csv, got {out.name!r}.")
        check_new_file("out", out, overwrite=asked.overwrite)
    page = prepare_page(asked.page, features, overwrite=asked.overwrite)
    numbers, centres = _clustered(features.features, asked.k, device)
    order = np.argsort(-np.bincount(numbers, minlength=asked.k), kind="stable")
    order = order[np.bincount(numbers, minlength=asked.k)[order] > 0]
    renumbered = np.empty(asked.k, dtype=np.int64)
    renumbered[order] = np.arange(len(order))
    found = Clusters(
        renumbered[numbers], tuple(_described(features, numbers, centres[number], int(number)) for number in order)
    )
    if out is not None:
        _write(out, features, found.numbers)
    if page is not None:
        page.write(_shown(found, features, centres[torch.from_numpy(order)]))
    return found


def _shown(found: Clusters, features: Features, centres: Tensor) -> Contents:
    groups = []
    for number, (one, centre) in enumerate(zip(found.clusters, centres, strict=True)):
        inside = np.flatnonzero(found.numbers == number)
        similarities, places = find_most_similar(centre, features.features, PICTURES_OF_GROUP, among=inside)
        cards = [
            ItemCard(place, features.item_name(place), f"{similarity:.3f}")
            for place, similarity in zip(places.tolist(), similarities.tolist(), strict=True)
        ]
        largest = f"largest class: {one.largest_class}" if one.class_name is not None else ""
        groups.append(
            CardGroup(f"Cluster {number}", pluralize(one.items, "item"), largest, cards, one.items - len(cards))
        )
    title = f"{pluralize(len(groups), 'cluster')} of {pluralize(len(features), 'item')}"
    return Contents(title, "Of each cluster the items that are nearest to its centre, with the cosine to it.", groups)


def _clustered(features: np.ndarray, count: int, device: torch.device) -> tuple[np.ndarray, Tensor]:
    """Return the cluster of each item, and the centres, ``(k, F)``."""
    spread = np.linspace(0, len(features) - 1, min(SAMPLED, len(features))).round().astype(np.int64)
    sample = np.array(features[spread], dtype=np.float32)
    begun = torch.from_numpy(kmeans_clusters(torch.from_numpy(sample), count).astype(np.int64))
    centres = torch.zeros(count, features.shape[1], device=device)
    for first, rows in blocks(sample, device):
        centres.index_add_(0, begun[first : first + len(rows)].to(device), rows)
    centres /= torch.bincount(begun, minlength=count).clamp(min=1)[:, None].to(device)
    numbers = np.full(len(features), -1)
    for _ in range(PASSES):
        before = numbers.copy()
        sums, counts = torch.zeros_like(centres), torch.zeros(count, device=device)
        for first, rows in blocks(features, device):
            near = (rows @ centres.T - centres.square().sum(1) / 2).argmax(1)
            numbers[first : first + len(rows)] = near.cpu().numpy()
            sums.index_add_(0, near, rows)
            counts += torch.bincount(near, minlength=count)
        if np.array_equal(numbers, before):
            break
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
    return numbers, centres


def _described(features: Features, numbers: np.ndarray, centre: Tensor, number: int) -> Cluster:
    inside = np.flatnonzero(numbers == number)
    _, places = find_most_similar(centre, features.features, SHOWN, among=inside)
    typical = tuple(map(features.item_name, places.tolist()))
    if features.labels is None:
        return Cluster(len(inside), typical, None)
    labels, counts = np.unique(features.labels[inside], return_counts=True)
    most = int(inside[np.flatnonzero(features.labels[inside] == labels[counts.argmax()])[0]])
    return Cluster(len(inside), typical, features.class_name_of(most), int(counts.max()))


def _write(out: Path, features: Features, numbers: np.ndarray) -> None:
    rows = ((position, features.item_name(position), int(number)) for position, number in enumerate(numbers))
    with report_write_errors("out", out):
        write_csv(out, ["position", "name", "cluster"], rows)
