"""`duplicates`: groups of items whose features are all but the same."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from contraport.evaluation.opening import open_device
from contraport.features import as_features
from contraport.notebook import html_columns
from contraport.searching.blocks import ROUNDING, unit
from contraport.searching.index import indexed, tell_of_index
from contraport.searching.page import PICTURES_OF_GROUP, Card, Cards, Contents, new_page
from contraport.verbs.duplicates import VERB, DuplicatesOptions
from contraport.wording import counted

log = logging.getLogger("contraport.searching")

TILE = 2_048
"""So many rows are compared with so many at once."""

GROUPS_SHOWN = 100
"""A page and a notebook show so many groups."""

NAMES_SHOWN = 5
"""A table names so many items of a group."""


class Group(NamedTuple):
    """Items that are all but the same, each as some other of them.

    Attributes:
        positions: where they are among the features, from 0.
        names: their keys, or their splits and rows in the source.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]


class Groups(list[Group]):
    """Groups of items that are all but the same, the largest first; a notebook shows them as a table.

    Attributes:
        items: among how many they are.
    """

    def __init__(self, found: Iterable[Group], items: int) -> None:
        super().__init__(found)
        self.items = items

    def __str__(self) -> str:
        return f"{counted(len(self), 'group')} of duplicates among {counted(self.items, 'item')}"

    def rows(self) -> list[dict[str, str]]:
        """Return what is known of each as texts."""
        return [
            {"group": str(number), "items": str(len(group.names)), "which": _first_of(group.names)}
            for number, group in enumerate(self, start=1)
        ]

    def _repr_html_(self) -> str:
        more = len(self) - GROUPS_SHOWN
        notes = [f"and {counted(more, 'more group', 'more groups')}"] if more > 0 else []
        return html_columns(str(self), self.rows()[:GROUPS_SHOWN], notes) if self else str(self)


@VERB.keywords
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
    page = new_page(asked.page, features, overwrite=asked.overwrite)
    if asked.index is None:
        tell_of_index(features.features)
        labels, most = _linked(features.features, asked.threshold, open_device(asked.device))
        if len(features) > 1 and most < asked.threshold:
            log.warning("no cosine is %g or more; the largest is %.4f", asked.threshold, most)
    else:
        found = indexed(features.features, Path(asked.index))
        labels = _together(list(found.links(asked.threshold)), len(features))
    order = np.argsort(labels, kind="stable")
    several = [
        tuple(part.tolist()) for part in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(part) > 1
    ]
    several.sort(key=lambda positions: (-len(positions), positions))
    groups = Groups([Group(these, tuple(map(features.name_of, these))) for these in several], len(features))
    if page is not None:
        page.write(_shown(groups, asked.threshold))
    return groups


def _first_of(names: Sequence[str]) -> str:
    """Return the first names of some, and how many there are more."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _shown(groups: Groups, threshold: float) -> Contents:
    cards = []
    for number, group in enumerate(groups[:GROUPS_SHOWN], start=1):
        these = [Card(place, name) for place, name in zip(group.positions, group.names, strict=True)]
        told = f"{counted(len(these), 'item')}"
        cards.append(Cards(f"Group {number}", told, "", these[:PICTURES_OF_GROUP], len(these[PICTURES_OF_GROUP:])))
    lead = f"The cosine of two linked items is {threshold:g} or more."
    if len(groups) > GROUPS_SHOWN:
        lead += f" The {GROUPS_SHOWN} largest groups are shown."
    return Contents(str(groups), lead, cards)


def _linked(features: np.ndarray, threshold: float, device: torch.device) -> tuple[np.ndarray, float]:
    """Return the number of the group of each row, ``(n,)``, and the largest cosine of two."""
    items = len(features)
    labels, most = np.arange(items), -1.0
    for first in range(0, items, TILE):
        rows = unit(features[first : first + TILE], device)
        links = [(labels, np.arange(items))]  # what is known: each row and one of its group
        for second in range(first, items, TILE):
            cosines = rows @ unit(features[second : second + TILE], device).T
            if second == first:
                cosines.fill_diagonal_(-torch.inf)
            most = max(most, float(cosines.max()))
            alike = cosines >= threshold - ROUNDING
            if second == first:
                alike = alike.triu(1)
            if bool(alike.any()):
                links.append(_of_tile(alike.cpu().numpy(), first, second))
        if len(links) > 1:
            labels = _together(links, items)
    return labels, most


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
