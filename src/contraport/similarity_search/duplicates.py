"""Implements `contraport duplicates`: groups of items with nearly equal features."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from contraport._utils.formatting import format_options, join_names, pluralize
from contraport._utils.notebook_tables import format_html_rows
from contraport.evaluation.split_loading import resolve_device
from contraport.feature_files import Features, as_features
from contraport.options import keep_deprecated_attributes
from contraport.similarity_search.command_options import DUPLICATES_COMMAND_SPEC, DuplicateSearchOptions
from contraport.similarity_search.nearest_rows import (
    COSINE_ROUNDING_ERROR,
    ApproximateFeatureIndex,
    check_and_normalize_rows,
    load_or_build_index,
    warn_of_pooled_features,
    warn_of_slow_search,
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

TILE_SIZE = 2_048  # rows and columns of a tile of the similarity matrix
MAX_HTML_GROUPS = 100  # maximum number of groups on a page and in a notebook
MAX_SHOWN_NAMES_PER_GROUP = 5  # maximum number of items of a group that a table or the terminal names
MAX_GROUPS_PRINTED = 20  # maximum number of groups that the terminal shows

FALSE_PROPOSAL_PROBABILITY = 0.05
"""Probability of proposing a threshold for data without duplicates (false-alarm rate)."""

MIN_LESS_SIMILAR_PAIRS = 20
"""Minimum number of pairs less similar than a gap, from which the usual width of gaps is estimated."""


class DuplicateGroup(NamedTuple):
    """Group of near duplicates, connected by pairs above the similarity threshold.

    Attributes:
        positions: positions of the items among the features, from 0.
        names: keys of the items, or else their splits and rows in the source.
        descriptions: beginnings of the texts of the items; empty if they have none, or the texts are their names.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]
    descriptions: tuple[str, ...] = ()

    def list_names_and_descriptions(self, max_count: int) -> list[str]:
        """List names and descriptions of at most `max_count` items of the group."""
        names = self.names[:max_count]
        described = zip(names, self.descriptions, strict=False)
        return [f"{name}: {text}" for name, text in described] if self.descriptions else list(names)


class NearestNeighborPair(NamedTuple):
    """Pair of an item and its nearest other item, with their cosine similarity.

    Attributes:
        positions: positions of both items among the features, from 0.
        names: keys of both items, or else their splits and rows in the source.
    """

    positions: tuple[int, int]
    names: tuple[str, str]
    similarity: float


@keep_deprecated_attributes(items="num_items", near_duplicates="pairs_below_threshold", notes="threshold_notes")
class DuplicatesResult(list[DuplicateGroup]):
    """List of duplicate groups, largest first, displayed as a table in notebooks.

    Attributes:
        num_items: number of items that were compared with one another.
        pairs_below_threshold: pairs just below the threshold, from the most to the least similar.
        proposed_threshold: threshold in the widest gap between the similarities; None if no gap stands out.
        threshold_notes: sentences about pairs below the threshold and about the proposed threshold.
    """

    def __init__(
        self,
        groups: Iterable[DuplicateGroup],
        num_items: int,
        pairs_below_threshold: Sequence[NearestNeighborPair] = (),
        proposed_threshold: float | None = None,
        threshold_notes: Sequence[str] = (),
    ) -> None:
        super().__init__(groups)
        self.num_items = num_items
        self.pairs_below_threshold = pairs_below_threshold
        self.proposed_threshold = proposed_threshold
        self.threshold_notes = threshold_notes

    def __str__(self) -> str:
        return f"{pluralize(len(self), 'group')} of duplicates among {pluralize(self.num_items, 'item')}"

    def format_rows(self) -> list[dict[str, str]]:
        """Format the groups as rows of a table, one for each group."""
        rows = []
        for number, group in enumerate(self, start=1):
            more = len(group.names) - MAX_SHOWN_NAMES_PER_GROUP
            first = "; ".join(group.list_names_and_descriptions(MAX_SHOWN_NAMES_PER_GROUP)) + (
                f" and {more:,} more" if more > 0 else ""
            )
            rows.append({"group": str(number), "items": str(len(group.names)), "names": first})
        return rows

    def _repr_html_(self) -> str:
        """HTML table of the groups, with notes, for notebooks."""
        more = len(self) - MAX_HTML_GROUPS
        notes = [f"and {pluralize(more, 'more group', 'more groups')}"] if more > 0 else []
        if not self:
            return " ".join([f"{self}.", *self.threshold_notes])
        return format_html_rows(str(self), self.format_rows()[:MAX_HTML_GROUPS], [*notes, *self.threshold_notes])


@DUPLICATES_COMMAND_SPEC.with_option_parameters
def duplicates(arguments: dict[str, Any]) -> DuplicatesResult:
    """Find groups of nearly equal items.

    Items are linked if their cosine similarity reaches a threshold. All pairs are compared, in tiles: the time is
    quadratic in the number of items and the memory linear.

    Raises:
        UsageError: an invalid argument, or features that cannot be read.

    >>> features = np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    >>> [group.positions for group in duplicates(features)]
    [(1, 3, 4), (0, 2)]
    """
    options = DuplicateSearchOptions(**arguments)
    features, threshold = as_features(options.features), options.threshold
    warn_of_pooled_features(features.run)
    check_output_path("out", options.out, (".csv",), overwrite=options.overwrite)
    check_output_path("page", options.page, PAGE_SUFFIXES, overwrite=options.overwrite)
    nearest = _NearestTracker(len(features))
    if options.index is None:
        warn_of_slow_search(features.features)
        labels = _label_groups(features.features, threshold, nearest, resolve_device(options.device))
    else:
        index = load_or_build_index(features.features, Path(options.index))
        labels = _label_groups_by_index(index, threshold, nearest)
    pairs, cosines = nearest.distinct_pairs_and_cosines()
    below = cosines < threshold - COSINE_ROUNDING_ERROR
    pairs_below_threshold = [
        NearestNeighborPair((first, second), (features.item_name(first), features.item_name(second)), cosine)
        for (first, second), cosine in zip(pairs[below][:12].tolist(), cosines[below].tolist(), strict=False)
    ]
    proposed = _find_proposed_threshold(cosines)
    if proposed is not None and np.array_equal(cosines >= proposed, ~below):
        proposed = None  # it would link the same pairs
    notes = _describe_pairs_below_threshold(cosines, threshold, proposed)
    result = DuplicatesResult(
        _build_duplicate_groups(labels, features), len(features), pairs_below_threshold, proposed, notes
    )
    for note in notes:
        log.log(logging.INFO if result else logging.WARNING, "%s", note)
    if options.out is not None:
        numbers = {item: number for number, group in enumerate(result, start=1) for item in group.positions}
        write_items_csv(options.out, features, "group", numbers)
    if options.page is not None:
        _write_duplicates_page(options.page, features, result, threshold)
    return result


def _build_duplicate_groups(group_labels: np.ndarray, features: Features) -> list[DuplicateGroup]:
    """Build the groups of two or more items, the largest first."""
    order = np.argsort(group_labels, kind="stable")
    groups = [
        part.tolist() for part in np.split(order, np.flatnonzero(np.diff(group_labels[order])) + 1) if len(part) > 1
    ]
    groups.sort(key=lambda positions: (-len(positions), positions))
    texts = features.descriptions
    return [
        DuplicateGroup(
            tuple(positions),
            tuple(map(features.item_name, positions)),
            () if texts is None else tuple(texts[positions].tolist()),
        )
        for positions in groups
    ]


def _format_cosine_below(cosine: float, threshold: float) -> str:
    """Format a cosine so that rounding does not raise it to the threshold.

    >>> _format_cosine_below(0.98, 0.999), _format_cosine_below(0.99896, 0.999), _format_cosine_below(0.5 - 2**-40, 0.5)
    ('0.9800', '0.99896', '0.499999999999')
    """
    texts = (f"{cosine:.{decimals}f}" for decimals in range(4, 18))  # 17 decimals are exact
    return next(text for text in texts if float(text) < threshold)


def _describe_pairs_below_threshold(
    cosines: np.ndarray, threshold: float, proposed_threshold: float | None
) -> list[str]:
    """Describe the pairs below the threshold, and propose a lower threshold."""
    below = cosines[cosines < threshold - COSINE_ROUNDING_ERROR]
    notes = []
    levels = [level for level in (0.99, 0.95, 0.9) if level < threshold]
    counts = np.diff([0, *(int((below >= level).sum()) for level in levels)]).tolist()
    if any(counts):
        ranges = zip(counts, levels, (threshold, *levels), strict=False)
        numbers = join_names([f"{count:,} from {low:g} to {high:g}" for count, low, high in ranges])
        notes.append(f"Pairs of an item and its nearest one below the threshold, by cosine similarity: {numbers}.")
    elif len(below) > 0:
        largest = _format_cosine_below(below[0], threshold)
        notes.append(f"The largest cosine similarity below the threshold of {threshold:g} is {largest}.")
    if proposed_threshold is not None:
        linked = cosines >= proposed_threshold
        gap = f"between {cosines[~linked][0]:.4f} and {cosines[linked][-1]:.4f}"
        number = pluralize(int(linked.sum()), "pair")
        lower = format_options(threshold=proposed_threshold)
        notes.append(f"The widest gap of the similarities is {gap}: {lower} links {number}.")
    return notes


def _find_proposed_threshold(cosines: np.ndarray) -> float | None:
    """Return a threshold in the widest gap of the pairs' cosines, or None.

    For points without duplicates the k smallest distances grow like a power. The spacings of their logarithms, the k-th
    multiplied by k, are then independent and exponential with one mean (Renyi's representation, as in Hill's estimator
    and in the intrinsic dimension of Levina and Bickel). A gap stands out if its spacing, divided by the mean of those
    beyond it, is larger than the maximum of as many exponential variables would be, and if it is wider than rounding
    errors. The cosines ``(p,)`` decrease.

    >>> _find_proposed_threshold(np.concatenate([[0.999, 0.97, 0.94], np.linspace(0.7, 0.1, 50)]))
    0.8
    """
    candidates = len(cosines) - 1 - MIN_LESS_SIMILAR_PAIRS
    if candidates < 1:
        return None
    logarithms = np.log(np.maximum(1 - cosines.astype(np.float64), COSINE_ROUNDING_ERROR))
    spacings = np.arange(1, len(cosines)) * np.diff(logarithms)
    sums = np.cumsum(spacings[::-1])[::-1]
    means = sums[1 : candidates + 1] / np.arange(len(spacings) - 1, len(spacings) - 1 - candidates, -1)
    ratios = spacings[:candidates] / np.maximum(means, COSINE_ROUNDING_ERROR)
    widest = int(ratios.argmax())
    if ratios[widest] < math.log(candidates / FALSE_PROPOSAL_PROBABILITY):
        return None
    high, low = float(cosines[widest]), float(cosines[widest + 1])
    # Near the middle of the gap, with as few decimals as possible.
    rounded = (round((low + high) / 2, decimals) for decimals in range(1, 9))
    return next((number for number in rounded if low + COSINE_ROUNDING_ERROR < number <= high), None)


def _write_duplicates_page(path: str | Path, features: Features, result: DuplicatesResult, threshold: float) -> None:
    """Write an HTML page of duplicate groups and pairs just below the threshold."""
    lead = [f"Linked items have a cosine similarity of {threshold:g} or more."]
    if len(result) > MAX_HTML_GROUPS:
        lead.append(f"The {MAX_HTML_GROUPS} largest groups are shown.")
    sections = []
    for number, group in enumerate(result[:MAX_HTML_GROUPS], start=1):
        cards = [ItemCard(position, features.item_name_and_description(position)) for position in group.positions]
        shown, more = cards[:MAX_SECTION_CARDS], len(cards[MAX_SECTION_CARDS:])
        sections.append(CardSection(f"Group {number}", shown, (pluralize(len(cards), "item"),), more))
    for number, pair in enumerate(result.pairs_below_threshold, start=1):
        cards = [ItemCard(position, features.item_name_and_description(position)) for position in pair.positions]
        notes = f"cosine {_format_cosine_below(pair.similarity, threshold)}", "below the threshold"
        sections.append(CardSection(f"Near duplicates {number}", cards, notes))
    write_cards_page(path, features, str(result), " ".join([*lead, *result.threshold_notes]), sections)


class _NearestTracker:
    """Nearest other item of each item among the pairs compared so far."""

    def __init__(self, num_items: int) -> None:
        self._cosines = np.full(num_items, -np.inf)
        self._others = np.arange(num_items)

    def update(self, rows: np.ndarray, others: np.ndarray, cosines: np.ndarray) -> None:
        """Update each row's nearest item where the compared item is nearer."""
        nearer = cosines > self._cosines[rows]
        self._cosines[rows[nearer]] = cosines[nearer]
        self._others[rows[nearer]] = others[nearer]

    def distinct_pairs_and_cosines(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of nearest neighbors, ``(p, 2)``, each once, and cosines ``(p,)``."""
        rows = np.flatnonzero(self._cosines > -np.inf)
        ends = np.sort(np.stack([rows, self._others[rows]], axis=1), axis=1)
        pairs, firsts = np.unique(ends, axis=0, return_index=True)
        cosines = self._cosines[rows[firsts]]
        order = np.argsort(-cosines, kind="stable")
        return pairs[order], cosines[order]


def _label_groups(features: np.ndarray, threshold: float, nearest: _NearestTracker, device: torch.device) -> np.ndarray:
    """Return each item's group; pairs with a cosine of at least `threshold` share one.

    `nearest` is updated by all pairs.
    """
    items = len(features)
    labels = np.arange(items)
    for first in range(0, items, TILE_SIZE):
        rows = check_and_normalize_rows(features[first : first + TILE_SIZE], device, first_item=first)
        links = [(labels, np.arange(items))]  # each row with one of its group so far
        for second in range(first, items, TILE_SIZE):
            cosines = (
                rows @ check_and_normalize_rows(features[second : second + TILE_SIZE], device, first_item=second).T
            )
            if second == first:
                cosines.fill_diagonal_(-torch.inf)
            for starts, dim in (((first, second), 1), ((second, first), 0)):
                best, places = (part.cpu().numpy() for part in cosines.max(dim=dim))
                nearest.update(starts[0] + np.arange(len(best)), starts[1] + places, best)
            linked = cosines >= threshold - COSINE_ROUNDING_ERROR
            if second == first:
                linked = linked.triu(1)
            if bool(linked.any()):
                # Memory could not hold all links of equal items: those of a tile are reduced to one per item.
                height, width = linked.shape
                tile_rows, tile_columns = np.nonzero(linked.cpu().numpy())
                first_items = _component_first_items([(tile_rows, height + tile_columns)], height + width)
                positions = np.concatenate([first + np.arange(height), second + np.arange(width)])
                links.append((positions[first_items], positions))
        if len(links) > 1:
            labels = _component_first_items(links, items)
    return labels


def _label_groups_by_index(index: ApproximateFeatureIndex, threshold: float, nearest: _NearestTracker) -> np.ndarray:
    """Return each item's group, using only pairs that an approximate index finds.

    `nearest` is updated by the pairs of the index.
    """
    num_items = len(index.features)
    links = [(np.arange(num_items), np.arange(num_items))]
    for rows, others, cosines in index.iter_near_pairs():
        order = np.lexsort((others, -cosines, rows))
        firsts = order[np.unique(rows[order], return_index=True)[1]]
        nearest.update(rows[firsts], others[firsts], cosines[firsts])
        linked = cosines >= threshold - COSINE_ROUNDING_ERROR
        links.append((rows[linked], others[linked]))
    return _component_first_items(links, num_items)


def _component_first_items(links: list[tuple[np.ndarray, np.ndarray]], num_items: int) -> np.ndarray:
    """Return for each item the first item of its connected component, ``(n,)``."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ends, others = (np.concatenate(part) for part in zip(*links, strict=True))
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (ends, others)), shape=(num_items, num_items))
    _, components = connected_components(graph.tocsr(), directed=False)
    _, firsts = np.unique(components, return_index=True)
    return np.asarray(firsts[components])
