"""Curves over the training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contraport.metrics import metrics_of_rows
from contraport.plots.curves import MAX_POINTS_PER_LINE, column_title, is_percent_column, subsample_rows
from contraport.reporting.page_builder import Canvas, Section
from contraport.reporting.plotly_figures import CURVE_HEIGHT, PERCENT, Figure, figure, line, over
from contraport.reporting.report_run import ReportRun

AXES = {
    "step": "step",
    "epoch": "epoch",
    "seconds": "seconds of training",
    "share": "share of the run",
}
"""Along what curves may be drawn: runs of unequal length or speed suit one or another."""

_SCHEDULED = ("temperature", "plan_mass")
DIGITS = 4
"""What changes in further digits alone, as the mass of a balanced plan does, has not changed."""

_GLOSSARY = {
    "loss": "Losses of different objectives differ by constants: compare their course, not their height.",
    "mi_bound": "What two views share at least, by the loss of a batch; at most the logarithm of its items.",
    "lr": "The peak and the fall are a setting, not a result.",
    "temperature": "Lower is stricter: only the nearest pairs count.",
    "plan_mass": "Below 100% the objective lets pairs go that cost too much.",
}
_MONITORED = "Measured on training items while it was trained; no test item is in it."


def training(canvas: Canvas) -> Section | None:
    """Return the curves of what was logged; nothing where nothing was."""
    monitored = metrics_of_rows(row for run in canvas.runs for row in run.metrics)
    columns = ["loss", *(measure.key for measure in monitored), "mi_bound", "lr", *_SCHEDULED]
    curves = []
    for key in columns:
        title = column_title(key)
        values = [{round(row[key], DIGITS) for row in run.metrics if row.get(key) is not None} for run in canvas.runs]
        if not any(len(of_run) > (key in _SCHEDULED) for of_run in values):
            continue
        label = f"{title} over the training steps; last values: {'; '.join(_ends(canvas.runs, key))}."
        drawing = curve(canvas.runs, key)
        if is_percent_column(key):
            drawing["layout"]["yaxis"] |= {"tickformat": PERCENT}
        plot = canvas.draw(f"curve-{key}", drawing, label)
        canvas.data.setdefault("along", {})[plot.key] = [
            along for run in canvas.runs if (along := _along(run, subsample_rows(run.metrics, key)))
        ]
        curves.append((title, plot, _GLOSSARY.get(key, _MONITORED)))
    if not curves:
        return None
    return Section("training", "Training", {"curves": curves, "points_per_line": MAX_POINTS_PER_LINE, "axes": AXES})


def curve(runs: Sequence[ReportRun], key: str) -> Figure:
    """Draw one column of the metrics over the steps, one line a run."""
    rows = [(run, subsample_rows(run.metrics, key)) for run in runs]
    lines = [line(run, [r["step"] for r in found], [r[key] for r in found]) for run, found in rows if found]
    x = over("step")
    return figure(lines, height=CURVE_HEIGHT, hovermode="x unified", x=x, y={"exponentformat": "power"})


def _along(run: ReportRun, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return for each axis where the rows of a run are on it, where the run has it."""
    if not rows:
        return {}
    last = run.metrics[-1]
    shares = [row["step"] / (last["step"] or 1) for row in rows]
    epochs = last.get("epoch")
    found: dict[str, list[Any]] = {
        "step": [row["step"] for row in rows],
        "share": [round(share, 5) for share in shares],
    }
    if epochs is not None:
        found["epoch"] = [round(epochs * share, 4) for share in shares]
    if all(row.get("seconds") is not None for row in rows):
        found["seconds"] = [row["seconds"] for row in rows]
    return found


def _ends(runs: Sequence[ReportRun], key: str) -> list[str]:
    last = {run.name: [row[key] for row in run.metrics if row.get(key) is not None] for run in runs}
    return [f"{name}: {values[-1]:.3g}" for name, values in last.items() if values]
