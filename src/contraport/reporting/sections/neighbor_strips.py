"""Section of the nearest neighbors of some test items, side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.report_run import ReportRun

NUM_ITEMS = 10
NUM_NEIGHBORS = 8


class NeighborItem(NamedTuple):
    """Item in a row of nearest neighbors.

    Attributes:
        place: index on the sprite sheet.
        item: id of the test item.
        name: of its class, or empty.
        text: of a text item, or empty.
        same: whether its class is that of the item whose neighbor it is; None without labels.
    """

    place: int
    item: int
    name: str
    text: str
    same: bool | None


class NeighborStrips(NamedTuple):
    """Some items of a run with their neighbors, and the share of all neighbors that have the class of their point."""

    run: ReportRun
    sheet: str
    rows: list[tuple[NeighborItem, list[NeighborItem]]]
    same_class: float | None


def build_neighbors(builder: PageBuilder) -> Section | None:
    """Build the section of nearest neighbors, of the same items for each run; return None without neighbors."""
    strips = []
    for run in builder.runs:
        if run.samples is not None and "neighbors" in run.samples and run.samples["neighbors"].shape[1] > 0:
            strips.append(_build_strips(run, builder.add_thumbnails(run.samples.get("thumbnails"))))
    by_class = all(
        each.same_class is not None and len({item.name for item, _ in each.rows}) == len(each.rows) for each in strips
    )
    values = {"strips": strips, "by_class": by_class}
    return Section("neighbors", "Nearest neighbors", values) if strips else None


def _build_strips(run: ReportRun, sheet: str) -> NeighborStrips:
    assert run.samples is not None
    nearest, labels = run.samples["neighbors"], run.samples.get("labels")
    ids, texts = run.samples.get("ids", np.arange(len(nearest))), run.samples.get("texts")

    def item(place: int, query: int | None) -> NeighborItem:
        name = "" if labels is None else run.class_names[int(labels[place])]
        text = "" if texts is None else str(texts[place])
        same = None if labels is None or query is None else bool(labels[place] == labels[query])
        return NeighborItem(place, int(ids[place]), name, text, same)

    rows = [
        (item(query, None), [item(int(other), query) for other in nearest[query][:NUM_NEIGHBORS]])
        for query in _choose_queries(labels, len(nearest))
    ]
    same_class = None if labels is None else float((labels[nearest] == labels[:, None]).mean())
    return NeighborStrips(run, sheet, rows, same_class)


def _choose_queries(labels: np.ndarray | None, items: int) -> list[int]:
    """Choose the first item of evenly spaced classes, or evenly spaced items."""
    places = np.arange(items)
    if labels is not None and len(np.unique(labels)) > 1:
        places = np.unique(labels, return_index=True)[1]
    spaced = np.linspace(0, len(places) - 1, min(NUM_ITEMS, len(places))).round().astype(int)
    return [int(place) for place in places[spaced]]
