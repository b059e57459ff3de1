"""Report section with a map of the test items in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from contraport.plots.feature_plots import class_name_positions
from contraport.plots.figure_setup import class_colors
from contraport.reporting.html_page_parts import PageAssets, PlotElement, Section
from contraport.reporting.plotly_figures import (
    INK_COLOR,
    MUTED_COLOR,
    PlotlyFigure,
    build_figure,
    escape_tags,
    shorten_label,
)
from contraport.reporting.reported_run import ReportedRun

MAX_CLASSES_IN_LEGEND = 24  # maximum number of classes in a legend; with more the names are in the hover text only


def build_embedding_map_section(
    assets: PageAssets,
    *,
    noun: str = "test item",
    lead: str = "Test items by the features of the frozen encoder. Hover over a point to see the item; click it for "
    "its nearest neighbors.",
) -> Section | None:
    """Build the section of embedding maps, or return None if no run stores 2-D points.

    `noun` names a point of a map, and `lead` is the text above the maps.
    """
    maps: list[tuple[ReportedRun, PlotElement, str]] = []
    for run in assets.runs:
        if "points" not in run.figure_arrays:
            continue
        points, method = run.figure_arrays["points"], str(run.figure_arrays.get("projection", "a projection"))
        coloring = "colored by class" if run.class_names else "without labels"
        data = run.evaluated_or_training_data_name
        label = f"{run.name}: {len(points):,} {noun}s of {data} in the plane ({method}), {coloring}."
        width, height = np.ptp(points.astype(float), axis=0)
        ratio = float(np.clip(width / height, 0.8, 1.7)) if height > 0 else None
        plot = assets.add_plot(f"map-{run.position}", draw_embedding_map(run), label, "map", ratio)
        sheet = assets.add_thumbnails(run.figure_arrays.get("thumbnails"))
        assets.script_data.setdefault("maps", {})[plot.element_id] = build_map_script_data(run, sheet) | {"noun": noun}
        maps.append((run, plot, method))
    if not maps:
        return None
    available = {name for points in assets.script_data["maps"].values() for name in points["colors"]}
    titles = {"label": "class", "domain": "domain", "loss": "loss", "suspicion": "suspicion"}
    colorings = {name: title for name, title in titles.items() if name in available}
    class_names = {run.evaluated_or_training_data_name: run.class_names for run in assets.runs if run.class_names}
    legends = [
        (data, list(zip(names, class_colors(len(names)), strict=True)))
        for data, names in class_names.items()
        if len(names) <= MAX_CLASSES_IN_LEGEND
    ]
    values = {"maps": maps, "legends": legends, "colors": colorings, "noun": noun, "lead": lead}
    return Section("embeddings", "Map", values)


def draw_embedding_map(run: ReportedRun) -> PlotlyFigure:
    """Draw test items as points in the plane, one trace per class.

    The script of the page adds the hover text.
    """
    points = run.figure_arrays["points"].astype(np.float32).round(3)
    positions = np.arange(len(points))
    labels = run.figure_arrays.get("labels", np.zeros(len(points), dtype=int))
    colors = class_colors(len(run.class_names)) or [MUTED_COLOR]
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
    # An empty trace that the page fills with rings around a chosen point and its neighbors.
    ring = {"size": [], "color": "rgba(0,0,0,0)", "line": {"width": 2, "color": "var(--ink)"}}
    empty = {"type": "scatter", "x": [], "y": [], "meta": -1, "mode": "markers", "marker": ring, "hoverinfo": "skip"}
    traces.append(empty)
    y = {"visible": False, "scaleanchor": "x"}
    return build_figure(
        traces, margin=4, x={"visible": False}, y=y, annotations=_build_class_name_annotations(run, points, labels)
    )


def _build_class_name_annotations(run: ReportedRun, points: np.ndarray, labels: np.ndarray) -> list[dict[str, Any]]:
    """Build plotly annotations that show class names beside the points."""
    if not 1 < len(run.class_names) <= MAX_CLASSES_IN_LEGEND:
        return []
    style = {"showarrow": False, "font": {"size": 11, "color": INK_COLOR}, "bgcolor": "var(--veil)", "borderpad": 1}
    places = zip(np.unique(labels).tolist(), class_name_positions(points, labels).tolist(), strict=True)
    return [
        style | {"name": str(label), "text": escape_tags(shorten_label(run.class_names[label])), "x": x, "y": y}
        for label, (x, y) in places
    ]


def build_map_script_data(run: ReportedRun, sprite_sheet_key: str) -> dict[str, Any]:
    """Build a map's items, classes, neighbors and colorings for the page's script."""
    samples = run.figure_arrays
    result: dict[str, Any] = {
        "name": run.name,
        "sheet": sprite_sheet_key,
        "classes": run.class_names,
        "data": run.evaluated_or_training_data_name,
    }
    result |= {name: samples[name] for name in ("ids", "labels", "neighbors", "texts") if name in samples}
    colors: dict[str, Any] = {"label": {}} if run.class_names else {}
    if "domains" in samples:
        names = [str(name) for name in samples["domain_names"]]
        colors["domain"] = {"of": samples["domains"], "names": names, "colors": class_colors(len(names))}
    for name, key in (("loss", "losses"), ("suspicion", "suspicion")):
        if key in samples and np.isfinite(samples[key]).all():  # otherwise there is no color scale
            colors[name] = {"values": samples[key].astype(float).round(4)}
    return result | {"colors": colors}
