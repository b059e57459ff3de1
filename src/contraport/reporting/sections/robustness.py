"""How the probe fares on corrupted test images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contraport.metrics import Metric
from contraport.metrics.registry import BASELINES
from contraport.reporting.numbers import measured, table
from contraport.reporting.page_builder import Canvas, Section
from contraport.reporting.plotly_figures import MUTED, PERCENT, Figure, figure, line, titled
from contraport.reporting.report_run import ReportRun

ROBUSTNESS = "robustness"
HEIGHT = 210

_DASHES = {"raw": "dot", "given": "dash", "untrained": "dash"}
"""How the baselines are drawn."""

_LINES = {"dot": "dotted", "dash": "dashed"}


def robustness(canvas: Canvas) -> Section | None:
    """Return the accuracy over the severity of each corruption; nothing where none was measured."""
    measures = [measure for measure in measured(canvas.runs) if measure.group == ROBUSTNESS]
    kinds = list(dict.fromkeys(measure.key.partition("@")[0] for measure in measures))
    rows = ("trained", *_baselines(canvas.runs))
    found = (_value(run, m.key, row) for run in canvas.runs for m in measures for row in rows)
    lowest = min((value for value in found if value is not None), default=0.0)
    curves = []
    for kind in kinds:
        of_kind = [measure for measure in measures if measure.key.partition("@")[0] == kind]
        name = of_kind[0].title.partition("@")[0]
        worst = of_kind[-1]
        ends = [f"{run.name} {worst.format(v)}" for run in canvas.runs if (v := _value(run, worst.key)) is not None]
        label = f"{name}: accuracy over the severity; at severity {_severity(worst)}: {'; '.join(ends)}."
        curves.append((name, canvas.draw(f"robust-{kind}", draw_severity_curves(canvas.runs, of_kind, lowest), label)))
    if not curves:
        return None
    values = {"curves": curves, "measures": measures, "groups": table(canvas.runs, measures)}
    values["baselines"] = [f"{BASELINES[row]} ({_LINES[_DASHES[row]]})" for row in rows[1:]]
    return Section("robustness", "Robustness", values)


def draw_severity_curves(runs: Sequence[ReportRun], measures: Sequence[Metric], lowest: float) -> Figure:
    """Draw the accuracy over the severity of one corruption, from none on, a line a run and the baselines in grey."""
    places = [(0, "linear_probe"), *((_severity(measure), measure.key) for measure in measures)]
    shown = {"mode": "lines+markers", "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>"}
    beside: dict[str, Any] = {"line": {"color": MUTED, "width": 1.2}, "marker": {"color": MUTED, "size": 4}, "meta": -1}
    lines = []
    for row in _baselines(runs):
        drawn = beside | {"name": BASELINES[row], "line": {**beside["line"], "dash": _DASHES[row]}}
        if known := _known(runs[0], places, row):
            x, y = zip(*known, strict=True)
            lines.append(line(runs[0], x, y, **shown, **drawn))
    for run in runs:
        if known := _known(run, places):
            x, y = zip(*known, strict=True)
            lines.append(line(run, x, y, **shown))
    shares = {"tickformat": PERCENT, "range": [max(0.0, lowest - 0.05), 1.0]}
    return figure(lines, height=HEIGHT, hovermode="x unified", x=titled("severity", dtick=1), y=shares)


def _severity(measure: Metric) -> int:
    return int(measure.key.partition("@")[2])


def _baselines(runs: Sequence[ReportRun]) -> list[str]:
    """Return the rows beside the runs that are the same for all of these, as they have the same data and encoder."""
    found = {row: {_value(run, "linear_probe", row) for run in runs} for row in _DASHES}
    same = [row for row, values in found.items() if len(values) == 1 and None not in values]
    return same if len({run.data for run in runs}) == 1 else []


def _known(run: ReportRun, places: Sequence[tuple[int, str]], row: str = "trained") -> list[tuple[int, float]]:
    return [(at, value) for at, key in places if (value := _value(run, key, row)) is not None]


def _value(run: ReportRun, key: str, row: str = "trained") -> float | None:
    value = (run.evaluation or {}).get("rows", {}).get(row, {}).get(key)
    return None if value is None else float(value)
