"""Report section with the nearest neighbors of some test items."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from contraport.reporting.html_page_parts import PageAssets, Section
from contraport.reporting.reported_run import ReportedRun


class ShownItem(NamedTuple):
    """Query item or neighbor, as shown in the report section.

    Attributes:
        sheet_index: index of its thumbnail in the sprite sheet.
        is_same_class: whether it has the class of its query; None for a query or without labels.
    """

    sheet_index: int
    id: int
    class_name: str
    text: str
    is_same_class: bool | None


def build_nearest_neighbors_section(assets: PageAssets) -> Section | None:
    """Build the section of nearest neighbors, or None if no run has neighbors."""
    strips = []
    for run in assets.runs:
        nearest, labels = run.figure_arrays.get("neighbors"), run.figure_arrays.get("labels")
        if nearest is None or nearest.shape[1] == 0:
            continue
        strip: dict[str, Any] = {
            "run": run,
            "sprite_sheet_key": assets.add_thumbnails(run.figure_arrays.get("thumbnails")),
            "rows": _build_query_and_neighbor_rows(run),
            "same_class_share": None if labels is None else float((labels[nearest] == labels[:, None]).mean()),
        }
        strips.append(strip)
    has_one_row_per_class = all(
        one["same_class_share"] is not None and len({item.class_name for item, _ in one["rows"]}) == len(one["rows"])
        for one in strips
    )
    values = {"strips": strips, "by_class": has_one_row_per_class}
    return Section("neighbors", "Nearest neighbors", values) if strips else None


def _build_query_and_neighbor_rows(run: ReportedRun) -> list[tuple[ShownItem, list[ShownItem]]]:
    """Tabulate at most 10 query items, each with its 8 nearest neighbors."""
    nearest, labels = run.figure_arrays["neighbors"], run.figure_arrays.get("labels")
    ids, texts = run.figure_arrays.get("ids", np.arange(len(nearest))), run.figure_arrays.get("texts")

    def build_item(item: int, query: int | None) -> ShownItem:
        class_name = "" if labels is None else run.class_names[int(labels[item])]
        is_same_class = None if labels is None or query is None else bool(labels[item] == labels[query])
        return ShownItem(item, int(ids[item]), class_name, "" if texts is None else str(texts[item]), is_same_class)

    queries = np.arange(len(nearest))
    if labels is not None and len(np.unique(labels)) > 1:  # one of each class
        queries = np.unique(labels, return_index=True)[1]
    queries = queries[np.linspace(0, len(queries) - 1, min(10, len(queries))).round().astype(int)]
    return [
        (build_item(query, None), [build_item(int(other), query) for other in nearest[query][:8]])
        for query in queries.tolist()
    ]
