"""Report section: curves of the metrics that were logged during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from contraport.metrics import collect_metrics_from_rows
from contraport.plots.curves import MAX_POINTS_PER_LINE, column_title, is_percent_column, select_evenly_spaced_rows
from contraport.reporting.page_builder import PageBuilder, Section
from contraport.reporting.plotly_figures import (
    CURVE_HEIGHT,
    PERCENT,
    Figure,
    build_axis_from_zero,
    build_figure,
    build_line_trace,
)
from contraport.reporting.report_run import ReportRun

AXES = {"step": "step", "epoch": "epoch", "seconds": "training time, s", "share": "share of the run"}
"""Horizontal axes that the page offers."""

SCHEDULED = ("temperature", "plan_mass")
"""Columns that are drawn only if they change."""

DIGITS = 4
"""Decimals in which a scheduled column must change; the mass of a balanced plan varies by rounding."""

NOTES = {
    "loss": "Losses of different objectives differ by constants: compare their shape, not their level.",
    "mi_bound": "Computed from the loss of a batch; at most the logarithm of the batch size.",
    "lr": "A setting, not a result.",
    "temperature": "A lower temperature weighs only the closest pairs.",
    "plan_mass": "Below 100% the objective drops pairs whose cost is too high.",
}
_ONLINE_NOTE = "Measured on training items during training, not on test items."


def build_training_curves_section(builder: PageBuilder) -> Section | None:
    """Build the section of training curves, one panel per logged metric; return None if nothing was logged."""
    monitored = collect_metrics_from_rows(row for run in builder.runs for row in run.metrics_rows)
    curves = []
    for key in ("loss", *(metric.key for metric in monitored), "mi_bound", "lr", *SCHEDULED):
        values = [
            {round(row[key], DIGITS) for row in run.metrics_rows if row.get(key) is not None} for run in builder.runs
        ]
        if not any(len(of_run) > (key in SCHEDULED) for of_run in values):
            continue
        title = column_title(key)
        last = [
            f"{run.name}: {[row[key] for row in run.metrics_rows if row.get(key) is not None][-1]:.3g}"
            for run, of_run in zip(builder.runs, values, strict=True)
            if of_run
        ]
        label = f"{title} over the training steps; last values: {'; '.join(last)}."
        figure = draw_training_curve(builder.runs, key)
        if is_percent_column(key):
            figure["layout"]["yaxis"] |= {"tickformat": PERCENT}
        plot = builder.add_plot(f"curve-{key}", figure, label)
        builder.script_data.setdefault("along", {})[plot.element_id] = [
            positions
            for run in builder.runs
            if (positions := _positions_on_axes(run, select_evenly_spaced_rows(run.metrics_rows, key)))
        ]
        curves.append((title, plot, NOTES.get(key, _ONLINE_NOTE)))
    values_by_name = {"curves": curves, "max_points": MAX_POINTS_PER_LINE, "axes": AXES}
    return Section("training", "Training", values_by_name) if curves else None


def draw_training_curve(runs: Sequence[ReportRun], key: str) -> Figure:
    """Draw one logged metric over the training steps, one line per run."""
    rows = [(run, select_evenly_spaced_rows(run.metrics_rows, key)) for run in runs]
    lines = [build_line_trace(run, [row["step"] for row in of], [row[key] for row in of]) for run, of in rows if of]
    x = build_axis_from_zero("step")
    return build_figure(lines, height=CURVE_HEIGHT, hovermode="x unified", x=x, y={"exponentformat": "power"})


def _positions_on_axes(run: ReportRun, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the position of each logged row on every horizontal axis: step, share, epoch and seconds."""
    if not rows:
        return {}
    last = run.metrics_rows[-1]
    shares = [row["step"] / (last["step"] or 1) for row in rows]
    epochs = last.get("epoch")
    positions: dict[str, list[Any]] = {
        "step": [row["step"] for row in rows],
        "share": [round(share, 5) for share in shares],
    }
    if epochs is not None:
        positions["epoch"] = [round(epochs * share, 4) for share in shares]
    if all(row.get("seconds") is not None for row in rows):
        positions["seconds"] = [row["seconds"] for row in rows]
    return positions
