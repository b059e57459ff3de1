"""Report section with cosines, singular values, alignment and uniformity of features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from contraport.metrics.embedding_geometry import effective_rank_from_spectrum
from contraport.metrics.registry import INITIAL_ENCODER_BASELINE_TITLES
from contraport.plots.feature_plots import MAX_NAMED_CLASSES, MIN_DRAWN_SINGULAR_VALUE_RATIO
from contraport.reporting.html_page_parts import PageAssets, PlotElement, Section
from contraport.reporting.plotly_figures import (
    CURVE_HEIGHT_PIXELS,
    HEATMAP_COLORSCALE,
    MUTED_COLOR,
    PlotlyFigure,
    build_axis_from_zero,
    build_byte_heatmap_trace,
    build_figure,
    build_line_trace,
    build_titled_axis,
    escape_tags,
    shorten_label,
)
from contraport.reporting.reported_run import ReportedRun
from contraport.reporting.sections.metric_curves import list_evaluated_epochs_and_rows


def build_geometry_section(assets: PageAssets) -> Section | None:
    """Build the report section on feature geometry, or None if it would be empty."""
    # One color scale for all runs, from the smallest 1% quantile of the cosines, rounded down to a tenth.
    arrays = [run.figure_arrays["cosines"] for run in assets.runs if "cosines" in run.figure_arrays]
    quantile = min((float(np.quantile(cosines, 0.01)) for cosines in arrays), default=0.0)
    lowest = min(0.9, math.floor(10 * quantile) / 10)
    heatmaps = []
    for run in assets.runs:
        if "cosines" not in run.figure_arrays:
            continue
        cosines, labels = run.figure_arrays["cosines"], run.figure_arrays.get("cosine_labels")
        within = between = None
        label = f"cosines of {len(cosines)} test items"
        if labels is not None and len(np.unique(labels)) > 1:
            same = labels[:, None] == labels
            others = same & ~np.eye(len(labels), dtype=bool)
            if others.any():
                within, between = float(cosines[others].mean()), float(cosines[~same].mean())
                label += f", {within:.2f} within classes and {between:.2f} between"
        figure = draw_item_cosine_heatmap(cosines, labels, run.class_names, lowest)
        names = figure["layout"]["yaxis"].get("ticktext", [""])
        # A square, and room for the names beside it: a character takes 1/80 of the figure's width.
        ratio = 1 / (1 - max(map(len, names)) / 80)
        heatmap = assets.add_plot(f"cosines-{run.position}", figure, f"{run.name}: {label}.", "square", ratio)
        heatmaps.append({"run": run, "heatmap": heatmap, "within": within, "between": between})
    spectrum = sphere = None
    if with_spectrum := [run for run in assets.runs if "spectrum" in run.figure_arrays]:
        spectrum = _add_singular_value_plot(assets, with_spectrum)
    if with_path := [run for run in assets.runs if len(_alignment_uniformity_by_encoder(run)) > 1]:
        sphere = _add_alignment_uniformity_plot(assets, with_path)
    if not heatmaps and spectrum is None and sphere is None:
        return None
    values = {"cosines": heatmaps, "lowest": lowest, "spectrum": spectrum, "sphere": sphere}
    return Section("geometry", "Geometry", values)


def draw_item_cosine_heatmap(
    cosines: np.ndarray, labels: np.ndarray | None, class_names: Sequence[str], lowest_cosine: float
) -> PlotlyFigure:
    """Draw a heatmap of the cosines between items, which are sorted by class."""
    shares = ((cosines - lowest_cosine) / (1 - lowest_cosine)).clip(0, 1)
    trace = build_byte_heatmap_trace(shares * 255, colorscale=HEATMAP_COLORSCALE)
    places = [f"item {k + 1}" for k in range(len(cosines))]
    axis: dict[str, Any] = {"showgrid": False, "showticklabels": False, "ticks": "", "constrain": "domain"}
    shapes = []
    if labels is not None:
        ends = np.flatnonzero(np.diff(labels)) + 0.5
        edges = np.concatenate([[-0.5], ends, [len(labels) - 0.5]])
        present = [class_names[int(label)] for label in labels[np.ceil(edges[:-1]).astype(int)]]
        if len(present) <= MAX_NAMED_CLASSES:
            ticks = {"tickvals": ((edges[1:] + edges[:-1]) / 2).tolist(), "showticklabels": True}
            axis |= ticks | {"ticktext": [escape_tags(shorten_label(name)) for name in present]}
        style = {"type": "line", "line": {"color": MUTED_COLOR, "width": 0.6}}
        for end in ends.tolist():
            shapes.append(style | {"x0": end, "x1": end, "y0": -0.5, "y1": len(labels) - 0.5})
            shapes.append(style | {"y0": end, "y1": end, "x0": -0.5, "x1": len(labels) - 0.5})
        places = [class_names[int(label)] for label in labels]
    trace["meta"] = {"places": places, "scale": [lowest_cosine, 1.0]}
    y = {**axis, "autorange": "reversed", "scaleanchor": "x", "constraintoward": "top"}
    return build_figure([trace], x={**axis, "showticklabels": False}, y=y, shapes=shapes)


def _add_singular_value_plot(assets: PageAssets, runs: Sequence[ReportedRun]) -> PlotElement:
    """Add a plot of singular values relative to the largest, by run."""
    lines, ranks = [], []
    for run in runs:
        values = run.figure_arrays["spectrum"].astype(float)
        ratios = values / (values[0] or 1)
        ratios = ratios[ratios > MIN_DRAWN_SINGULAR_VALUE_RATIO]
        hover = "%{y:.2e}<extra>%{fullData.name}</extra>"
        lines.append(build_line_trace(run, range(1, len(ratios) + 1), ratios.tolist(), hovertemplate=hover))
        ranks.append(
            f"{run.name}: effective rank {effective_rank_from_spectrum(torch.from_numpy(values)):.1f} of {len(values)}"
        )
    x = build_axis_from_zero("direction")
    tick_texts = ["1", *(f"10<sup>−{k}</sup>" for k in range(1, 8))]
    y = {"type": "log", "tickvals": [10.0**-k for k in range(8)], "ticktext": tick_texts}
    figure = build_figure(lines, height=CURVE_HEIGHT_PIXELS, hovermode="x unified", x=x, y=y)
    return assets.add_plot("spectrum", figure, f"Singular values. {'; '.join(ranks)}.")


def _add_alignment_uniformity_plot(assets: PageAssets, runs: Sequence[ReportedRun]) -> PlotElement:
    """Add a plot of alignment against uniformity, one path per run."""
    lines, last = [], []
    for run in runs:
        path = _alignment_uniformity_by_encoder(run)
        y, x = zip(*path.values(), strict=True)
        marker = {
            "color": run.color,
            "size": [6] * (len(path) - 1) + [11],
            "symbol": ["circle-open"] + ["circle"] * (len(path) - 1),
        }
        hover = "%{text}<br>uniformity %{x:.3f}<br>alignment %{y:.3f}<extra>%{fullData.name}</extra>"
        lines.append(
            build_line_trace(run, x, y, mode="lines+markers", marker=marker, text=list(path), hovertemplate=hover)
        )
        last.append(f"{run.name}: uniformity {x[-1]:.2f}, alignment {y[-1]:.2f}")
    x_axis = build_titled_axis("uniformity (lower: more even)")
    y_axis = build_titled_axis("alignment (lower: closer views)")
    figure = build_figure(lines, height=CURVE_HEIGHT_PIXELS, x=x_axis, y=y_axis)
    return assets.add_plot("sphere", figure, f"Alignment against uniformity. {'; '.join(last)}.")


def _alignment_uniformity_by_encoder(run: ReportedRun) -> dict[str, tuple[float, float]]:
    """Return alignment and uniformity by name of encoder, such as "epoch 5"."""
    names = [row for _, row in list_evaluated_epochs_and_rows(run)] or [
        row for row in (*INITIAL_ENCODER_BASELINE_TITLES, "trained") if row in run.metrics_by_encoder
    ]
    pairs = {
        name: (run.metrics_by_encoder[name].get("alignment"), run.metrics_by_encoder[name].get("uniformity"))
        for name in names
    }
    return {name: (x, y) for name, (x, y) in pairs.items() if x is not None and y is not None}
