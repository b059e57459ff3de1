"""Report section: accuracy of the linear probe on corrupted test images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contraport.metrics import Metric
from contraport.metrics.registry import BASELINES
from contraport.reporting.metric_tables import build_metric_tables, list_evaluated_metrics
from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.plotly_figures import (
    MUTED,
    PERCENT,
    Figure,
    build_figure,
    build_line_trace,
    build_titled_axis,
)
from contraport.reporting.report_run import ReportRun

ROBUSTNESS = "robustness"
HEIGHT = 210

_BASELINE_DASHES = {"raw": "dot", "given": "dash", "untrained": "dash"}
_DASH_NAMES = {"dot": "dotted", "dash": "dashed"}


def build_robustness_section(builder: PageBuilder) -> Section | None:
    """Build the section of robustness, one panel per corruption; return None if no corruption was evaluated."""
    metrics = [metric for metric in list_evaluated_metrics(builder.runs) if metric.group == ROBUSTNESS]
    kinds = list(dict.fromkeys(metric.key.partition("@")[0] for metric in metrics))
    rows = ("trained", *_shared_baselines(builder.runs))
    values = (run.metric_value(metric.key, row) for run in builder.runs for metric in metrics for row in rows)
    lowest = min((value for value in values if value is not None), default=0.0)
    curves = []
    for kind in kinds:
        of_kind = [metric for metric in metrics if metric.key.partition("@")[0] == kind]
        name, worst = of_kind[0].title.partition("@")[0], of_kind[-1]
        last = [
            f"{run.name} {worst.format(value)}"
            for run in builder.runs
            if (value := run.metric_value(worst.key)) is not None
        ]
        label = f"{name}: accuracy over the severity; at severity {_severity_of_metric(worst)}: {'; '.join(last)}."
        figure = draw_severity_curves(builder.runs, of_kind, lowest)
        curves.append((name, builder.add_plot(f"robust-{kind}", figure, label)))
    if not curves:
        return None
    baselines = [f"{BASELINES[row]} ({_DASH_NAMES[_BASELINE_DASHES[row]]})" for row in rows[1:]]
    groups = build_metric_tables(builder.runs, metrics)
    values_by_name = {"curves": curves, "metrics": metrics, "groups": groups, "baselines": baselines}
    return Section("robustness", "Robustness", values_by_name)


def draw_severity_curves(runs: Sequence[ReportRun], metrics: Sequence[Metric], lowest: float) -> Figure:
    """Draw accuracy over the severity of one corruption, one line per run and gray lines for baselines."""
    points = [(0, "linear_probe"), *((_severity_of_metric(metric), metric.key) for metric in metrics)]
    style = {"mode": "lines+markers", "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>"}
    gray: dict[str, Any] = {"marker": {"color": MUTED, "size": 4}, "meta": -1}
    sources: list[tuple[ReportRun, str, dict[str, Any]]] = [
        (runs[0], row, gray | {"name": BASELINES[row], "line": {"color": MUTED, "width": 1.2, "dash": dash}})
        for row, dash in _BASELINE_DASHES.items()
        if row in _shared_baselines(runs)
    ]
    sources += [(run, "trained", {}) for run in runs]
    lines = []
    for run, row, settings in sources:
        if known := [(at, value) for at, key in points if (value := run.metric_value(key, row)) is not None]:
            x, y = zip(*known, strict=True)
            lines.append(build_line_trace(run, x, y, **style | settings))
    y_axis = {"tickformat": PERCENT, "range": [max(0.0, lowest - 0.05), 1.0]}
    return build_figure(lines, height=HEIGHT, hovermode="x unified", x=build_titled_axis("severity", dtick=1), y=y_axis)


def _severity_of_metric(metric: Metric) -> int:
    return int(metric.key.partition("@")[2])


def _shared_baselines(runs: Sequence[ReportRun]) -> list[str]:
    """Return the baselines whose accuracy is equal in all runs; empty if the runs differ in data."""
    values = {row: {run.metric_value("linear_probe", row) for run in runs} for row in _BASELINE_DASHES}
    shared = [row for row, of_row in values.items() if len(of_row) == 1 and None not in of_row]
    return shared if len({run.data_name for run in runs}) == 1 else []
