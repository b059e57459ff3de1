"""`duplicates`: groups of items whose features are all but the same."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from contraport._utils.formatting import format_options, join_names, pluralize
from contraport._utils.html_repr import format_html_rows
from contraport.evaluation.split_loading import resolve_device
from contraport.features import as_features
from contraport.searching.block_search import ROUNDING, unit
from contraport.searching.config import DUPLICATES, DuplicatesOptions
from contraport.searching.index import Index, load_or_build_index, suggest_index
from contraport.searching.page import PICTURES_OF_GROUP, CardGroup, Contents, ItemCard, prepare_page

log = logging.getLogger("contraport.searching")

TILE = 2_048
"""So many rows are compared with so many at once."""

GROUPS_SHOWN = 100
"""A page and a notebook show so many groups."""

NAMES_SHOWN = 5
"""A table names so many items of a group."""

PAIRS_SHOWN = 12
"""A page shows so many pairs below the threshold."""

LEVELS = (0.99, 0.95, 0.9)
"""Cosines from which on the pairs below the threshold are counted."""


class Group(NamedTuple):
    """Items that are all but the same, each as some other of them.

    Attributes:
        positions: where they are among the features, from 0.
        names: their keys, or their splits and rows in the source.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]


class Pair(NamedTuple):
    """An item and the one that is nearest to it.

    Attributes:
        positions: where they are among the features, from 0.
        names: their keys, or their splits and rows in the source.
        similarity: the cosine of their features.
    """

    positions: tuple[int, int]
    names: tuple[str, str]
    similarity: float


class Groups(list[Group]):
    """Groups of items that are all but the same, the largest first; a notebook shows them as a table.

    Attributes:
        items: among how many they are.
        near_duplicates: the most similar pairs of nearest items below the threshold, the most similar first.
        proposed_threshold: a threshold in the widest gap of the cosines, or None where no gap stands out.
        notes: how many pairs lie just below the threshold, and the threshold that is proposed, in sentences.
    """

    def __init__(
        self,
        groups: Iterable[Group],
        items: int,
        near_duplicates: Sequence[Pair] = (),
        proposed_threshold: float | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(groups)
        self.items = items
        self.near_duplicates = near_duplicates
        self.proposed_threshold = proposed_threshold
        self.notes = notes

    def __str__(self) -> str:
        return f"{pluralize(len(self), 'group')} of duplicates among {pluralize(self.items, 'item')}"

    def rows(self) -> list[dict[str, str]]:
        """Return what is known of each as texts."""
        return [
            {"group": str(number), "items": str(len(group.names)), "which": _first_of(group.names)}
            for number, group in enumerate(self, start=1)
        ]

    def _repr_html_(self) -> str:
        more = len(self) - GROUPS_SHOWN
        notes = [f"and {pluralize(more, 'more group', 'more groups')}"] if more > 0 else []
        if not self:
            return " ".join([f"{self}.", *self.notes])
        return format_html_rows(str(self), self.rows()[:GROUPS_SHOWN], [*notes, *self.notes])


@DUPLICATES.with_signature
def duplicates(given: dict[str, Any]) -> Groups:
    """Return the groups of items that are linked by a cosine of at least a threshold, the largest group first.

    All pairs are looked at, a tile at a time, so that the time grows with the square of the number of items, and the
    memory with the number.

    Raises:
        UsageError: a wrong argument, or features that cannot be read.

    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> [group.positions for group in duplicates(features)]
    [(1, 3, 4), (0, 2)]
    """
    asked = DuplicatesOptions(**given)
    features = as_features(asked.features)
    page = prepare_page(asked.page, features, overwrite=asked.overwrite)
    if asked.index is None:
        suggest_index(features.features)
        labels, nearest = _linked(features.features, asked.threshold, resolve_device(asked.device))
    else:
        index = load_or_build_index(features.features, Path(asked.index))
        labels, nearest = _linked_in_index(index, asked.threshold, len(features))
    order = np.argsort(labels, kind="stable")
    several = [
        tuple(part.tolist()) for part in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(part) > 1
    ]
    several.sort(key=lambda positions: (-len(positions), positions))
    pairs, cosines = nearest.pairs()
    below = cosines < asked.threshold - ROUNDING
    near_duplicates = [
        Pair((first, second), (features.item_name(first), features.item_name(second)), cosine)
        for (first, second), cosine in zip(pairs[below][:PAIRS_SHOWN].tolist(), cosines[below].tolist(), strict=False)
    ]
    proposed = _threshold_in_gap(cosines)
    if proposed is not None and np.array_equal(cosines >= proposed, ~below):
        proposed = None  # it would link the same pairs
    notes = _notes(cosines, asked.threshold, proposed)
    groups = Groups(
        [Group(these, tuple(map(features.item_name, these))) for these in several],
        len(features),
        near_duplicates,
        proposed,
        notes,
    )
    for note in notes:
        log.log(logging.INFO if groups else logging.WARNING, "%s", note)
    if page is not None:
        page.write(_shown(groups, asked.threshold))
    return groups


def _notes(cosines: np.ndarray, threshold: float, proposed: float | None) -> list[str]:
    """Return how many pairs of nearest items lie just below a threshold, and which threshold is proposed."""
    below = cosines[cosines < threshold - ROUNDING]
    notes = []
    counts = [(level, int((below >= level).sum())) for level in LEVELS if level < threshold]
    if any(count for _, count in counts):
        listing = join_names([f"{count:,} from {level:g}" for level, count in counts])
        notes.append(f"Pairs of nearest items below the threshold of {threshold:g}: {listing}.")
    elif len(below) > 0:
        notes.append(f"The largest cosine below the threshold of {threshold:g} is {below[0]:.4f}.")
    if proposed is not None:
        linked = cosines >= proposed
        gap = f"{cosines[~linked][0]:.4f} and {cosines[linked][-1]:.4f}"
        there = f"{format_options(threshold=proposed)} would link {pluralize(int(linked.sum()), 'pair')}"
        notes.append(f"No pair of nearest items has a cosine between {gap}, the widest gap: {there}.")
    return notes


FALSE_GAPS = 0.05
"""Probability that a gap is proposed where the distances are those of points without duplicates."""

FEWEST_BEYOND_GAP = 20
"""So many pairs beyond a gap are needed to know how wide gaps are there."""


def _threshold_in_gap(cosines: np.ndarray) -> float | None:
    """Return a threshold in the widest gap of the cosines of nearest items, or None where no gap stands out.

    The distances of the k nearest pairs of points without duplicates grow like a power, so that the spacings of their
    logarithms, the k-th multiplied by k, are independent and exponential with one mean (Renyi; Hill's estimator, and
    that of the intrinsic dimension by Levina and Bickel, rest on it). A gap stands out where its spacing divided by
    the mean of those beyond it is one that no exponential variable of as many reaches.

    Args:
        cosines: falling, ``(p,)``.

    >>> _threshold_in_gap(np.concatenate([[0.999, 0.97, 0.94], np.linspace(0.7, 0.1, 50)]))
    0.8
    """
    candidates = len(cosines) - 1 - FEWEST_BEYOND_GAP
    if candidates < 1:
        return None
    logarithms = np.log(np.maximum(1 - cosines.astype(np.float64), ROUNDING))
    spacings = np.arange(1, len(cosines)) * np.diff(logarithms)
    sums = np.cumsum(spacings[::-1])[::-1]
    means = sums[1 : candidates + 1] / np.arange(len(spacings) - 1, len(spacings) - 1 - candidates, -1)
    ratios = spacings[:candidates] / np.maximum(means, ROUNDING)
    widest = int(ratios.argmax())
    if ratios[widest] < math.log(candidates / FALSE_GAPS):
        return None
    return _between(float(cosines[widest + 1]), float(cosines[widest]))


def _between(low: float, high: float) -> float:
    """Return the number of fewest decimals near the middle of two cosines, above the low one and at most the high one.

    >>> _between(0.852, 0.94), _between(0.99951, 0.99958)
    (0.9, 0.99955)
    """
    return next(
        number
        for number in (round((low + high) / 2, decimals) for decimals in range(1, 9))
        if low + ROUNDING < number <= high
    )


def _first_of(names: Sequence[str]) -> str:
    """Return the first names of some, and how many there are more."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _shown(groups: Groups, threshold: float) -> Contents:
    cards = []
    for number, group in enumerate(groups[:GROUPS_SHOWN], start=1):
        these = [ItemCard(place, name) for place, name in zip(group.positions, group.names, strict=True)]
        told = f"{pluralize(len(these), 'item')}"
        cards.append(CardGroup(f"Group {number}", told, "", these[:PICTURES_OF_GROUP], len(these[PICTURES_OF_GROUP:])))
    lead = [f"The cosine of two linked items is {threshold:g} or more."]
    if len(groups) > GROUPS_SHOWN:
        lead.append(f"The {GROUPS_SHOWN} largest groups are shown.")
    for number, pair in enumerate(groups.near_duplicates, start=1):
        these = [ItemCard(place, name) for place, name in zip(pair.positions, pair.names, strict=True)]
        cards.append(CardGroup(f"Next pair {number}", f"cosine {pair.similarity:.4f}", "below the threshold", these))
    return Contents(str(groups), " ".join([*lead, *groups.notes]), cards)


class _Nearest:
    """The nearest other item of each, as far as pairs were looked at."""

    def __init__(self, items: int) -> None:
        self._cosines = np.full(items, -np.inf)
        self._others = np.arange(items)

    def update(self, rows: np.ndarray, others: np.ndarray, cosines: np.ndarray) -> None:
        """Take the cosines of items, each there once, with others."""
        nearer = cosines > self._cosines[rows]
        self._cosines[rows[nearer]] = cosines[nearer]
        self._others[rows[nearer]] = others[nearer]

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return each item with its nearest, ``(p, 2)``, no pair twice, and the cosines ``(p,)``, falling."""
        rows = np.flatnonzero(self._cosines > -np.inf)
        ends = np.sort(np.stack([rows, self._others[rows]], axis=1), axis=1)
        pairs, firsts = np.unique(ends, axis=0, return_index=True)
        cosines = self._cosines[rows[firsts]]
        order = np.argsort(-cosines, kind="stable")
        return pairs[order], cosines[order]


def _linked(features: np.ndarray, threshold: float, device: torch.device) -> tuple[np.ndarray, _Nearest]:
    """Return the number of the group of each row, ``(n,)``, and the nearest other row of each."""
    items = len(features)
    labels, nearest = np.arange(items), _Nearest(items)
    for first in range(0, items, TILE):
        rows = unit(features[first : first + TILE], device)
        links = [(labels, np.arange(items))]  # what is known: each row and one of its group
        for second in range(first, items, TILE):
            cosines = rows @ unit(features[second : second + TILE], device).T
            if second == first:
                cosines.fill_diagonal_(-torch.inf)
            for starts, dim in (((first, second), 1), ((second, first), 0)):
                best, places = (part.cpu().numpy() for part in cosines.max(dim=dim))
                nearest.update(starts[0] + np.arange(len(best)), starts[1] + places, best)
            alike = cosines >= threshold - ROUNDING
            if second == first:
                alike = alike.triu(1)
            if bool(alike.any()):
                links.append(_of_tile(alike.cpu().numpy(), first, second))
        if len(links) > 1:
            labels = _together(links, items)
    return labels, nearest


def _linked_in_index(index: Index, threshold: float, items: int) -> tuple[np.ndarray, _Nearest]:
    """Return what `_linked` does, of the pairs that an index finds."""
    links, nearest = [(np.arange(items), np.arange(items))], _Nearest(items)
    for rows, others, cosines in index.pairs():
        order = np.lexsort((others, -cosines, rows))
        firsts = order[np.unique(rows[order], return_index=True)[1]]
        nearest.update(rows[firsts], others[firsts], cosines[firsts])
        alike = cosines >= threshold - ROUNDING
        links.append((rows[alike], others[alike]))
    return _together(links, items), nearest


def _of_tile(alike: np.ndarray, first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
    """Return no more links than rows and columns of a tile that join what all of its links do."""
    height, width = alike.shape
    rows, columns = np.nonzero(alike)
    joined = _together([(rows, height + columns)], height + width)
    place = np.concatenate([first + np.arange(height), second + np.arange(width)])
    return place[joined], place


def _together(links: list[tuple[np.ndarray, np.ndarray]], items: int) -> np.ndarray:
    """Return for each of some items the first of those that it is joined with by links."""
    ends, others = (np.concatenate(part) for part in zip(*links, strict=True))
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (ends, others)), shape=(items, items))
    _, found = connected_components(graph.tocsr(), directed=False)
    _, firsts = np.unique(found, return_index=True)
    return np.asarray(firsts[found])
