"""Report section: curves of evaluated metrics over the saved epochs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contraport.metrics import Metric
from contraport.metrics.registry import BEFORE_TRAINING
from contraport.reporting.metric_tables import list_evaluated_metrics
from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.plotly_figures import (
    CURVE_HEIGHT,
    MUTED,
    PERCENT,
    Figure,
    build_axis_from_zero,
    build_figure,
    build_line_trace,
)
from contraport.reporting.report_run import ReportRun

GROUPS = ("accuracy", "few-labels", "retrieval", "clustering", "geometry", "domains")
MAX_METRICS = 6
"""Number of metrics that are drawn; `evaluation.json` has all."""


def build_epoch_curves_section(builder: PageBuilder) -> Section | None:
    """Build the section of metrics over the epochs; return None if no run was evaluated at several epochs."""
    runs = [run for run in builder.runs if len(list_row_names_by_epoch(run)) > 2]
    metrics = [metric for metric in list_evaluated_metrics(runs) if metric.group in GROUPS]
    metrics.sort(key=lambda metric: GROUPS.index(metric.group))
    # Of Recall@1, Recall@5, ... only the first.
    families = {metric.key.partition("@")[0]: metric for metric in reversed(metrics)}
    curves = []
    for metric in [metric for metric in metrics if metric in families.values()][:MAX_METRICS]:
        last = [
            f"{run.name}: {metric.format(values[-1])}" for run in runs if (values := _metric_by_epoch(run, metric)[1])
        ]
        label = f"{metric.title} over the epochs; last values: {'; '.join(last)}."
        key = f"epochs-{metric.key.replace('@', '-')}"
        curves.append((metric, builder.add_plot(key, draw_epoch_curves(runs, metric), label)))
    return Section("epochs", "Epochs", {"curves": curves}) if curves else None


def list_row_names_by_epoch(run: ReportRun) -> list[tuple[int, str]]:
    """Return each evaluated epoch with the row name of its metrics; epoch 0 is before training."""
    last = (run.evaluation or {}).get("epochs")
    epochs = [(int(name.removeprefix("epoch ")), name) for name in run.rows_by_encoder if name.startswith("epoch ")]
    epochs += [(0, row) for row in BEFORE_TRAINING if row in run.rows_by_encoder]
    epochs += [(last, "trained")] if last is not None else []
    return sorted(epochs)


def draw_epoch_curves(runs: Sequence[ReportRun], metric: Metric) -> Figure:
    """Draw a metric with confidence intervals over the epochs, one line per run, and its value on raw inputs."""
    traces: list[dict[str, Any]] = []
    for run in runs:
        x, y, high, low = _metric_by_epoch(run, metric)
        bars = {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "color": run.color, "width": 2}
        settings = {"error_y": bars | {"thickness": 1}} if any(high) or any(low) else {}
        traces.append(build_line_trace(run, x, y, mode="lines+markers", **settings))
    raw = next((value for run in runs if (value := run.metric_value(metric.key, "raw")) is not None), None)
    shapes: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    if raw is not None and len({run.data_name for run in runs}) == 1:
        dotted = {"color": MUTED, "width": 1.2, "dash": "dot"}
        shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": raw, "y1": raw, "line": dotted}]
        text = {"text": "raw<br>inputs", "x": 1, "xref": "paper", "xanchor": "left", "xshift": 4, "y": raw}
        annotations = [text | {"align": "left", "showarrow": False, "font": {"size": 11, "color": MUTED}}]
        # Shapes do not extend the axis, so an invisible point does.
        point = {"type": "scatter", "x": [0], "y": [raw], "mode": "markers", "marker": {"opacity": 0}}
        traces.append(point | {"hoverinfo": "skip"})
    ticks = {"tickformat": PERCENT} if metric.in_percent else {}
    x_axis = build_axis_from_zero("epoch", max(list_row_names_by_epoch(run)[-1][0] for run in runs))
    figure = build_figure(
        traces, height=CURVE_HEIGHT, hovermode="x unified", x=x_axis, y=ticks, shapes=shapes, annotations=annotations
    )
    figure["layout"]["margin"]["r"] = 46 if annotations else 8
    return figure


def _metric_by_epoch(run: ReportRun, metric: Metric) -> tuple[list[int], list[float], list[float], list[float]]:
    """Return epochs, metric values, and distances of the interval ends above and below the values."""
    intervals = (run.evaluation or {}).get("intervals", {})
    x, y, high, low = [], [], [], []
    for epoch, row in list_row_names_by_epoch(run):
        value = run.rows_by_encoder[row].get(metric.key)
        if value is None:
            continue
        ends = intervals.get(row, {}).get(metric.key, {"low": value, "high": value})
        x.append(epoch)
        y.append(value)
        high.append(ends["high"] - value)
        low.append(value - ends["low"])
    return x, y, high, low
