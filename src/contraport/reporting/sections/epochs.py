"""What the encoder was worth after each epoch that was kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contraport.metrics import Metric
from contraport.metrics.registry import BEFORE
from contraport.reporting.numbers import measured
from contraport.reporting.page_builder import Canvas, Section
from contraport.reporting.plotly_figures import CURVE_HEIGHT, MUTED, PERCENT, Figure, figure, line, over
from contraport.reporting.report_run import ReportRun
from contraport.reporting.sections.robustness import ROBUSTNESS

SHOWN = ("accuracy", "few-labels", "retrieval", "clustering", "geometry", "domains")
MOST = 6
"""More measures than this are not drawn; `evaluation.json` has them all."""


def epochs(canvas: Canvas) -> Section | None:
    """Return measures over epochs, of runs that kept some models and were evaluated with them."""
    runs = [run for run in canvas.runs if len(list_epoch_rows(run)) > 2]
    known = [measure for measure in measured(runs) if measure.group in SHOWN and measure.group != ROBUSTNESS]
    known.sort(key=lambda measure: SHOWN.index(measure.group))
    first = {measure.key.partition("@")[0]: measure for measure in reversed(known)}  # of those that differ in a number
    curves = []
    for measure in [measure for measure in known if measure in first.values()][:MOST]:
        drawing = draw_epoch_curves(runs, measure)
        ends = [f"{run.name}: {measure.format(values[-1])}" for run in runs if (values := _values(run, measure)[1])]
        label = f"{measure.title} over the epochs; last values: {'; '.join(ends)}."
        curves.append((measure, canvas.draw(f"epochs-{measure.key.replace('@', '-')}", drawing, label)))
    return Section("epochs", "Epoch by epoch", {"curves": curves}) if curves else None


def list_epoch_rows(run: ReportRun) -> list[tuple[int, str]]:
    """Return the epochs that were measured, with the names of their rows; epoch 0 is before training."""
    evaluation = run.evaluation or {}
    rows, last = evaluation.get("rows", {}), evaluation.get("epochs")
    kept = [(int(name.removeprefix("epoch ")), name) for name in rows if name.startswith("epoch ")]
    ends = [(0, row) for row in BEFORE if row in rows] + kept + ([(last, "trained")] if last is not None else [])
    return sorted(ends)


def draw_epoch_curves(runs: Sequence[ReportRun], measure: Metric) -> Figure:
    """Draw a measure over the epochs, one line a run, with intervals where it has them and the raw inputs beside."""
    traces: list[dict[str, Any]] = []
    for run in runs:
        x, y, high, low = _values(run, measure)
        bars = {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "color": run.color, "width": 2}
        further = {"error_y": bars | {"thickness": 1}} if any(high) or any(low) else {}
        traces.append(line(run, x, y, mode="lines+markers", **further))
    of_raw = ((run.evaluation or {})["rows"].get("raw", {}).get(measure.key) for run in runs)
    raw = next((value for value in of_raw if value is not None), None)
    shapes = []
    words = []
    if raw is not None and len({run.data for run in runs}) == 1:
        shapes.append({"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": raw, "y1": raw})
        shapes[0] |= {"line": {"color": MUTED, "width": 1.2, "dash": "dot"}}
        words.append({"text": "raw<br>inputs", "x": 1, "xref": "paper", "xanchor": "left", "xshift": 4, "y": raw})
        words[0] |= {"align": "left", "showarrow": False, "font": {"size": 11, "color": MUTED}}
        traces.append(
            {"type": "scatter", "x": [0], "y": [raw], "mode": "markers", "marker": {"opacity": 0}, "hoverinfo": "skip"}
        )
    ticks = {"tickformat": PERCENT} if measure.pattern.endswith("%}") else {}
    x_axis = over("epoch", max(list_epoch_rows(run)[-1][0] for run in runs))
    drawing = figure(traces, height=CURVE_HEIGHT, hovermode="x unified", x=x_axis, y=ticks, shapes=shapes)
    drawing["layout"] |= {"annotations": words, "margin": {**drawing["layout"]["margin"], "r": 46 if words else 8}}
    return drawing


def _values(run: ReportRun, measure: Metric) -> tuple[list[int], list[float], list[float], list[float]]:
    """Return the epochs of a run, the values, and how far their intervals reach up and down."""
    evaluation = run.evaluation or {}
    x, y, high, low = [], [], [], []
    for epoch, row in list_epoch_rows(run):
        value = evaluation["rows"][row].get(measure.key)
        if value is None:
            continue
        ends = evaluation.get("intervals", {}).get(row, {}).get(measure.key, {"low": value, "high": value})
        x.append(epoch)
        y.append(value)
        high.append(ends["high"] - value)
        low.append(value - ends["low"])
    return x, y, high, low
