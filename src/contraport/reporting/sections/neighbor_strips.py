"""Report section: some test items, each with its nearest neighbors side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.report_run import ReportRun

NUM_QUERIES = 10
NUM_NEIGHBORS = 8


class NeighborItem(NamedTuple):
    """Test item in a row of nearest neighbors: the query item or one of its neighbors.

    Attributes:
        sheet_index: index of the thumbnail on the sprite sheet.
        item_id: id of the test item.
        class_name: name of the class; empty without labels.
        text: text of the item; empty if the item is no text.
        is_same_class: whether the neighbor has the class of the query item; None for the query or without labels.
    """

    sheet_index: int
    item_id: int
    class_name: str
    text: str
    is_same_class: bool | None


class RunNeighbors(NamedTuple):
    """Nearest neighbors of some test items by the features of one run.

    Attributes:
        run: run whose encoder computed the features.
        sprite_sheet_key: key of the sprite sheet of thumbnails; empty without images.
        rows: query items, each with its nearest neighbors.
        same_class_share: share of all neighbors that have the class of their query item; None without labels.
    """

    run: ReportRun
    sprite_sheet_key: str
    rows: list[tuple[NeighborItem, list[NeighborItem]]]
    same_class_share: float | None


def build_neighbors_section(builder: PageBuilder) -> Section | None:
    """Build the section of nearest neighbors, with the same query items for each run; None without neighbors."""
    strips = []
    for run in builder.runs:
        if (
            run.figure_arrays is not None
            and "neighbors" in run.figure_arrays
            and run.figure_arrays["neighbors"].shape[1] > 0
        ):
            strips.append(_build_strips(run, builder.add_thumbnails(run.figure_arrays.get("thumbnails"))))
    by_class = all(
        each.same_class_share is not None and len({item.class_name for item, _ in each.rows}) == len(each.rows)
        for each in strips
    )
    values = {"strips": strips, "by_class": by_class}
    return Section("neighbors", "Nearest neighbors", values) if strips else None


def _build_strips(run: ReportRun, sheet: str) -> RunNeighbors:
    assert run.figure_arrays is not None
    nearest, labels = run.figure_arrays["neighbors"], run.figure_arrays.get("labels")
    ids, texts = run.figure_arrays.get("ids", np.arange(len(nearest))), run.figure_arrays.get("texts")

    def item(place: int, query: int | None) -> NeighborItem:
        name = "" if labels is None else run.class_names[int(labels[place])]
        text = "" if texts is None else str(texts[place])
        same = None if labels is None or query is None else bool(labels[place] == labels[query])
        return NeighborItem(place, int(ids[place]), name, text, same)

    rows = [
        (item(query, None), [item(int(other), query) for other in nearest[query][:NUM_NEIGHBORS]])
        for query in _choose_query_items(labels, len(nearest))
    ]
    same_class_share = None if labels is None else float((labels[nearest] == labels[:, None]).mean())
    return RunNeighbors(run, sheet, rows, same_class_share)


def _choose_query_items(labels: np.ndarray | None, items: int) -> list[int]:
    """Choose the items whose neighbors are shown: the first of evenly spaced classes, or evenly spaced items."""
    places = np.arange(items)
    if labels is not None and len(np.unique(labels)) > 1:
        places = np.unique(labels, return_index=True)[1]
    spaced = np.linspace(0, len(places) - 1, min(NUM_QUERIES, len(places))).round().astype(int)
    return [int(place) for place in places[spaced]]
