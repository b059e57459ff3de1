"""Test items in the plane, coloured by what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from contraport.plots.colors import class_colors
from contraport.plots.label_placement import place_labels
from contraport.reporting.page_builder import Canvas, Plot, Section
from contraport.reporting.plotly_figures import INK, MUTED, Figure, escaped, figure, short
from contraport.reporting.report_run import ReportRun

CLASSES_IN_LEGEND = 24
"""With more classes than this the colours have no legend, only the hover text."""

RATIOS = 0.8, 1.7
"""A map is at least and at most so many times as wide as it is high."""

COLORED_BY = {"label": "class", "domain": "domain", "loss": "loss", "suspicion": "suspicion"}


def embeddings(canvas: Canvas) -> Section | None:
    """Return a map of each run; nothing where none has points."""
    maps: list[tuple[ReportRun, Plot, str]] = []
    for run in canvas.runs:
        if run.samples is None or "points" not in run.samples:
            continue
        points, method = len(run.samples["points"]), str(run.samples.get("projection", "a projection"))
        colored = "coloured by class" if run.class_names else "without labels"
        label = f"{run.name}: {points:,} test items of {run.data} in the plane ({method}), {colored}."
        plot = canvas.draw(f"map-{run.position}", scatter(run), label, "map", ratio=_ratio(run.samples["points"]))
        canvas.data.setdefault("maps", {})[plot.key] = describe_points(
            run, canvas.pictures(run.samples.get("thumbnails"))
        )
        maps.append((run, plot, method))
    if not maps:
        return None
    known = {name for found in canvas.data["maps"].values() for name in found["colors"]}
    values = {
        "maps": maps,
        "legends": legends(canvas.runs),
        "colors": {k: v for k, v in COLORED_BY.items() if k in known},
    }
    return Section("embeddings", "Embeddings", values)


def _ratio(points: np.ndarray) -> float | None:
    """Return how wide a map of points is over how high, within what a page can give; none of points in one place."""
    wide, high = np.ptp(points.astype(float), axis=0)
    return float(np.clip(wide / high, *RATIOS)) if high > 0 else None


def scatter(run: ReportRun) -> Figure:
    """Draw the test embeddings of a run in the plane, one trace a class; hovering is the page's."""
    assert run.samples is not None
    points = run.samples["points"].astype(np.float32).round(3)
    positions = np.arange(len(points))
    labels = run.samples.get("labels", np.zeros(len(points), dtype=int))
    colors = class_colors(len(run.class_names)) or [MUTED]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": points[labels == label, 0].tolist(),
            "y": points[labels == label, 1].tolist(),
            "customdata": positions[labels == label],
            "meta": int(label),
            "mode": "markers",
            "marker": {"size": 5, "opacity": 0.8, "color": colors[int(label)], "line": {"width": 0}},
            "hoverinfo": "none",
        }
        for label in np.unique(labels)
    ]
    ring = {"size": [], "color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "var(--ink)"}}
    traces.append(
        {"type": "scatter", "x": [], "y": [], "meta": -1, "mode": "markers", "marker": ring, "hoverinfo": "skip"}
    )
    y = {"visible": False, "scaleanchor": "x"}
    return figure(traces, margin=4, x={"visible": False}, y=y, annotations=_names_of_classes(run, points, labels))


def _names_of_classes(run: ReportRun, points: np.ndarray, labels: np.ndarray) -> list[dict[str, Any]]:
    """Return the names of the classes where most of their points are, so that no one needs to tell colours apart."""
    if not 1 < len(run.class_names) <= CLASSES_IN_LEGEND:
        return []
    style = {"showarrow": False, "font": {"size": 11, "color": INK}, "bgcolor": "var(--veil)", "borderpad": 1}
    places = zip(np.unique(labels).tolist(), place_labels(points, labels).tolist(), strict=True)
    return [
        style | {"name": str(label), "text": escaped(short(run.class_names[label])), "x": x, "y": y}
        for label, (x, y) in places
    ]


def describe_points(run: ReportRun, sheet: str) -> dict[str, Any]:
    """Return what the page tells of each point: its item, its class, its neighbours, and by what it may be coloured."""
    samples = run.samples or {}
    found: dict[str, Any] = {"name": run.name, "sheet": sheet, "classes": run.class_names, "data": run.data}
    for name in ("ids", "labels", "neighbors", "texts"):
        if name in samples:
            found[name] = samples[name]
    found["colors"] = {}
    if run.class_names:
        found["colors"]["label"] = {}
    if "domains" in samples:
        names = [str(name) for name in samples["domain_names"]]
        found["colors"]["domain"] = {"of": samples["domains"], "names": names, "colors": class_colors(len(names))}
    for name, key in (("loss", "losses"), ("suspicion", "suspicion")):
        if key in samples and np.isfinite(samples[key]).all():  # else there is no scale to colour by
            found["colors"][name] = {"values": samples[key].astype(float).round(4)}
    return found


def legends(runs: Iterable[ReportRun]) -> list[tuple[str, Sequence[tuple[str, str]]]]:
    """Return the classes and colours of each data set that has few enough to name."""
    names = {run.data: run.class_names for run in runs if run.class_names}
    return [
        (data, list(zip(classes, class_colors(len(classes)), strict=True)))
        for data, classes in names.items()
        if len(classes) <= CLASSES_IN_LEGEND
    ]
