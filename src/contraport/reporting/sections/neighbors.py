"""The nearest neighbours of some items, side by side."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from contraport.reporting.page_builder import Canvas, Section
from contraport.reporting.report_run import ReportRun

ITEMS = 10
NEIGHBORS = 8


class Near(NamedTuple):
    """An item in a strip.

    Attributes:
        place: on the sheet.
        item: its number among the test items.
        name: of its class.
        text: what it says, where it is a text.
        same: whether its class is that of the item whose neighbour it is; None without labels.
    """

    place: int
    item: int
    name: str
    text: str
    same: bool | None


class Strips(NamedTuple):
    """Some items of a run, each with its neighbours, and how many of all points' neighbours are of their class."""

    run: ReportRun
    sheet: str
    rows: list[tuple[Near, list[Near]]]
    of_class: float | None


def neighbors(canvas: Canvas) -> Section | None:
    """Return the neighbours of the same few items in each run; nothing where none has neighbours."""
    strips = []
    for run in canvas.runs:
        if run.samples is None or "neighbors" not in run.samples or run.samples["neighbors"].shape[1] == 0:
            continue
        strips.append(_strips(run, canvas.pictures(run.samples.get("thumbnails"))))
    by_class = all(of.of_class is not None and len({item.name for item, _ in of.rows}) == len(of.rows) for of in strips)
    return Section("neighbors", "Nearest neighbours", {"strips": strips, "by_class": by_class}) if strips else None


def _strips(run: ReportRun, sheet: str) -> Strips:
    assert run.samples is not None
    nearest, labels = run.samples["neighbors"], run.samples.get("labels")
    ids, texts = run.samples.get("ids", np.arange(len(nearest))), run.samples.get("texts")

    def near(place: int, like: int | None) -> Near:
        label = None if labels is None else int(labels[place])
        name = "" if label is None else run.class_names[label]
        text = "" if texts is None else str(texts[place])
        return Near(place, int(ids[place]), name, text, None if label is None or like is None else label == like)

    def row(place: int) -> tuple[Near, list[Near]]:
        like = None if labels is None else int(labels[place])
        return near(place, None), [near(int(other), like) for other in nearest[place][:NEIGHBORS]]

    of_class = None if labels is None else float((labels[nearest] == labels[:, None]).mean())
    return Strips(run, sheet, [row(place) for place in _some(labels, len(nearest))], of_class)


def _some(labels: np.ndarray | None, items: int) -> list[int]:
    """Return a few places: the first of each class, or spread evenly."""
    if labels is not None and len(np.unique(labels)) > 1:
        first = np.unique(labels, return_index=True)[1]
        return [
            int(place) for place in first[np.linspace(0, len(first) - 1, min(ITEMS, len(first))).round().astype(int)]
        ]
    return sorted({int(place) for place in np.linspace(0, items - 1, min(ITEMS, items)).round()})
