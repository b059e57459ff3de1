"""How the probe fares on corrupted test images."""

from __future__ import annotations

from collections.abc import Sequence

from contraport.measures import Measure
from contraport.reporting.canvas import Canvas, Section
from contraport.reporting.drawing import PERCENT, Figure, figure, line, titled
from contraport.reporting.numbers import measured, table
from contraport.reporting.shown import ShownRun

ROBUSTNESS = "robustness"
HEIGHT = 210


def robustness(canvas: Canvas) -> Section | None:
    """Return the accuracy over the severity of each corruption; nothing where none was measured."""
    measures = [measure for measure in measured(canvas.runs) if measure.group == ROBUSTNESS]
    kinds = list(dict.fromkeys(measure.key.partition("@")[0] for measure in measures))
    lowest = min((v for run in canvas.runs for m in measures if (v := _value(run, m.key)) is not None), default=0.0)
    curves = []
    for kind in kinds:
        of_kind = [measure for measure in measures if measure.key.partition("@")[0] == kind]
        name = of_kind[0].title.rpartition(" ")[0]
        worst = of_kind[-1]
        ends = [f"{run.name} {worst.written(v)}" for run in canvas.runs if (v := _value(run, worst.key)) is not None]
        label = f"{name}: accuracy over the severity; at severity {_severity(worst)}: {'; '.join(ends)}."
        curves.append((name, canvas.draw(f"robust-{kind}", over_severity(canvas.runs, of_kind, lowest), label)))
    if not curves:
        return None
    values = {"curves": curves, "measures": measures, "groups": table(canvas.runs, measures)}
    return Section("robustness", "Robustness", values)


def over_severity(runs: Sequence[ShownRun], measures: Sequence[Measure], lowest: float) -> Figure:
    """Draw the accuracy over the severity of one corruption, from none on, one line a run."""
    lines = []
    for run in runs:
        found = [(0, "linear_probe"), *((_severity(measure), measure.key) for measure in measures)]
        known = [(at, value) for at, key in found if (value := _value(run, key)) is not None]
        if known:
            lines.append(
                line(
                    run,
                    *zip(*known, strict=True),
                    mode="lines+markers",
                    hovertemplate="%{y:.1%}<extra>%{fullData.name}</extra>",
                )
            )
    y = {"tickformat": PERCENT, "range": [max(0.0, lowest - 0.05), 1.0]}
    return figure(lines, height=HEIGHT, hovermode="x unified", x=titled("severity", dtick=1), y=y)


def _severity(measure: Measure) -> int:
    return int(measure.key.partition("@")[2])


def _value(run: ShownRun, key: str) -> float | None:
    value = (run.evaluation or {}).get("rows", {}).get("trained", {}).get(key)
    return None if value is None else float(value)
