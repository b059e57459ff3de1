"""How features lie: who is like whom, how many directions they use, and how close and how even they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from contraport.metrics.embedding_geometry import entropy_rank
from contraport.metrics.registry import BEFORE
from contraport.reporting.page_builder import Canvas, Plot, Section
from contraport.reporting.plotly_figures import (
    COLORSCALE,
    CURVE_HEIGHT,
    MUTED,
    Figure,
    escaped,
    figure,
    heatmap,
    line,
    over,
    short,
    titled,
)
from contraport.reporting.report_run import ReportRun
from contraport.reporting.sections.epochs import list_epoch_rows

LEAST = 1e-7
"""A singular value that is less of the largest is rounding, and not drawn."""

POWERS = {10.0**-k: "1" if k == 0 else f"10<sup>−{k}</sup>" for k in range(8)}
"""Ticks of a logarithmic axis from one down, as they are written."""

LETTER = 0.0125
"""How wide a letter of a class's name is beside a heatmap, of the width of both."""


class CosineSummary(NamedTuple):
    """The cosines of items of a run, with their means within a class and between two."""

    run: ReportRun
    plot: Plot
    within: float | None
    between: float | None


def geometry(canvas: Canvas) -> Section | None:
    """Return cosines, the spectrum, and alignment beside uniformity; nothing where none is known."""
    lowest = _lowest(canvas.runs)
    likeness = [found for run in canvas.runs if (found := _likeness(canvas, run, lowest)) is not None]
    sampled = [run for run in canvas.runs if run.samples is not None and "spectrum" in run.samples]
    spectrum = canvas.draw("spectrum", *spectra(sampled)) if sampled else None
    paths = [run for run in canvas.runs if len(_path(run)) > 1]
    plane = canvas.draw("sphere", *draw_alignment_uniformity(paths)) if paths else None
    if not likeness and spectrum is None and plane is None:
        return None
    return Section(
        "geometry", "Geometry", {"likeness": likeness, "lowest": lowest, "spectrum": spectrum, "plane": plane}
    )


def _lowest(runs: Sequence[ReportRun]) -> float:
    """Return where the colour scale of the cosines begins: a tenth below nearly all of them."""
    found = [
        float(np.quantile(run.samples["cosines"], 0.01)) for run in runs if run.samples and "cosines" in run.samples
    ]
    return min(0.9, math.floor(10 * min(found, default=0.0)) / 10)


def _likeness(canvas: Canvas, run: ReportRun, lowest: float) -> CosineSummary | None:
    if run.samples is None or "cosines" not in run.samples:
        return None
    cosines, labels = run.samples["cosines"], run.samples.get("cosine_labels")
    within = between = None
    said = f"cosines of {len(cosines)} test items"
    if labels is not None and len(np.unique(labels)) > 1:
        same = labels[:, None] == labels
        others = same & ~np.eye(len(labels), dtype=bool)
        if others.any():
            within, between = float(cosines[others].mean()), float(cosines[~same].mean())
            said += f", {within:.2f} within classes and {between:.2f} between"
    drawing = similarity(cosines, labels, run.class_names, lowest)
    named = drawing["layout"]["yaxis"].get("ticktext", [""])
    ratio = 1 / (1 - LETTER * max(map(len, named)))  # so much room do the names take beside a square
    plot = canvas.draw(f"cosines-{run.position}", drawing, f"{run.name}: {said}.", "square", ratio)
    return CosineSummary(run, plot, within, between)


def similarity(cosines: np.ndarray, labels: np.ndarray | None, names: Sequence[str], lowest: float) -> Figure:
    """Draw cosines from some lowest one on as a heatmap, with lines between classes."""
    trace = heatmap(((cosines - lowest) / (1 - lowest)).clip(0, 1) * 255, colorscale=COLORSCALE)
    places = [f"item {k + 1}" for k in range(len(cosines))]
    axis: dict[str, Any] = {"showgrid": False, "showticklabels": False, "ticks": "", "constrain": "domain"}
    shapes = []
    if labels is not None:
        ends = np.flatnonzero(np.diff(labels)) + 0.5
        edges = np.concatenate([[-0.5], ends, [len(labels) - 0.5]])
        present = [names[int(label)] for label in labels[np.ceil(edges[:-1]).astype(int)]]
        middles = ((edges[1:] + edges[:-1]) / 2).tolist()
        if len(present) <= 24:
            names_shown = [escaped(short(name)) for name in present]
            axis |= {"tickvals": middles, "ticktext": names_shown, "showticklabels": True}
        mark = {"type": "line", "line": {"color": MUTED, "width": 0.6}}
        for end in ends.tolist():
            shapes.append(mark | {"x0": end, "x1": end, "y0": -0.5, "y1": len(labels) - 0.5})
            shapes.append(mark | {"y0": end, "y1": end, "x0": -0.5, "x1": len(labels) - 0.5})
        places = [names[int(label)] for label in labels]
    trace["meta"] = {"places": places, "scale": [lowest, 1.0]}
    y = {**axis, "autorange": "reversed", "scaleanchor": "x", "constraintoward": "top"}
    return figure([trace], x={**axis, "showticklabels": False}, y=y, shapes=shapes)


def spectra(runs: Sequence[ReportRun]) -> tuple[Figure, str]:
    """Draw the singular values over the largest, one line a run, and say what they come to."""
    lines, said = [], []
    for run in runs:
        assert run.samples is not None
        values = run.samples["spectrum"].astype(float)
        shares = values / (values[0] or 1)
        shares = shares[shares > LEAST]
        lines.append(
            line(
                run, range(1, len(shares) + 1), shares.tolist(), hovertemplate="%{y:.2e}<extra>%{fullData.name}</extra>"
            )
        )
        said.append(f"{run.name}: effective rank {entropy_rank(torch.from_numpy(values)):.1f} of {len(values)}")
    x, y = over("direction"), {"type": "log", "tickvals": list(POWERS), "ticktext": list(POWERS.values())}
    return figure(lines, height=CURVE_HEIGHT, hovermode="x unified", x=x, y=y), f"Singular values. {'; '.join(said)}."


def draw_alignment_uniformity(runs: Sequence[ReportRun]) -> tuple[Figure, str]:
    """Draw alignment beside uniformity, from the encoder before training to the trained one, one path a run."""
    lines, said = [], []
    for run in runs:
        path = _path(run)
        names, x, y = zip(*path, strict=True)
        marker = {
            "color": run.color,
            "size": [6] * (len(path) - 1) + [11],
            "symbol": ["circle-open"] + ["circle"] * (len(path) - 1),
        }
        hover = "%{text}<br>uniformity %{x:.3f}<br>alignment %{y:.3f}<extra>%{fullData.name}</extra>"
        lines.append(line(run, x, y, mode="lines+markers", marker=marker, text=names, hovertemplate=hover))
        said.append(f"{run.name}: uniformity {x[-1]:.2f}, alignment {y[-1]:.2f}")
    drawing = figure(
        lines,
        height=CURVE_HEIGHT,
        x=titled("uniformity (lower: more even)"),
        y=titled("alignment (lower: closer views)"),
    )
    return drawing, f"Alignment beside uniformity. {'; '.join(said)}."


def _path(run: ReportRun) -> list[tuple[str, float, float]]:
    rows = (run.evaluation or {}).get("rows", {})
    names = list_epoch_rows(run) or [(0, name) for name in (*BEFORE, "trained") if name in rows]
    found = [(name, rows[name].get("uniformity"), rows[name].get("alignment")) for _, name in names]
    return [(name, x, y) for name, x, y in found if x is not None and y is not None]
