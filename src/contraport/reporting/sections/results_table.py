"""Report sections: results (metrics by run, differences, cross-view retrieval) and settings of all runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from contraport._utils.formatting import join_names
from contraport.metrics import Metric, collect_metrics_from_rows
from contraport.reporting.html_page import PageBuilder, PlotElement, Section
from contraport.reporting.metric_tables import (
    MetricCell,
    build_metric_cell,
    build_metric_tables,
    compare_settings,
    list_evaluated_metrics,
    summarize_training_speed,
)
from contraport.reporting.plotly_figures import GRID, MUTED, build_figure, build_titled_axis, escape_tags
from contraport.reporting.report_run import ReportRun
from contraport.reporting.sections.metric_curves import ROBUSTNESS

ROW_HEIGHT = 24
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")


def build_results_section(builder: PageBuilder) -> Section:
    """Build the section of results: tables of metrics, differences of runs, and notes on missing parts."""
    runs = builder.runs
    metrics = [metric for metric in list_evaluated_metrics(runs) if metric.group != ROBUSTNESS]
    values = {
        "groups": build_metric_tables(runs, metrics),
        "metrics": metrics,
        "notes": list_run_problems(runs),
        "differing": [(key, values) for key, values, differs in compare_settings(runs) if differs],
        "differences": _draw_differences(builder, metrics),
        "directions": _build_direction_cells(runs),
    }
    return Section("results", "Results", values)


def list_run_problems(runs: Sequence[ReportRun]) -> list[str]:
    """Write notes on runs without metrics or evaluation, on diverged losses, and the notes of the evaluations."""
    notes = [f"{run.name} has no curves: no metrics are logged yet." for run in runs if not run.metrics_rows]
    notes += [f"{run.name} is not evaluated: contraport evaluate {run.path}" for run in runs if not run.evaluation]
    for run in runs:
        diverged = (row["step"] for row in run.metrics_rows if not math.isfinite(row.get("loss") or 0.0))
        if (step := next(diverged, None)) is not None:
            notes.append(f"{run.name}: the loss is not finite at step {step:,}.")
    evaluated = {run.name: run.evaluation.get("notes", []) for run in runs if run.evaluation}
    for note in dict.fromkeys(note for of_run in evaluated.values() for note in of_run):
        names = [name for name, of_run in evaluated.items() if note in of_run]
        notes.append(note if len(names) == len(runs) else f"{join_names(names)}: {note}")
    return notes


def build_settings_section(builder: PageBuilder) -> Section:
    """Build the section with all settings and the training speed of every run."""
    values = {"settings": compare_settings(builder.runs), "speeds": summarize_training_speed(builder.runs)}
    return Section("settings", "Settings", values)


def _draw_differences(builder: PageBuilder, metrics: Sequence[Metric]) -> list[tuple[ReportRun, PlotElement]]:
    """Draw a forest plot per data set: differences of the runs from the first run, with confidence intervals."""
    metrics = [metric for metric in metrics if metric.in_percent and metric.better_direction != "neither"]
    result = []
    for data in dict.fromkeys(run.data_name for run in builder.runs):
        first, *others = [run for run in builder.runs if run.data_name == data]
        gains = [
            (metric, run, gain)
            for metric in metrics
            for run in others
            if (gain := run.paired_difference(first, metric.key)) is not None
        ]
        if not gains:
            continue
        titles = list(dict.fromkeys(escape_tags(metric.title) for metric, *_ in gains))
        traces = []
        for place, run in enumerate(others):
            own = [(metric, gain) for metric, of, gain in gains if of is run]
            shift = 0.36 * (place - (len(others) - 1) / 2) / max(1, len(others) - 1)
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [100 * gain.value for _, gain in own],
                    "y": [titles.index(escape_tags(metric.title)) + shift for metric, _ in own],
                    "error_x": {
                        "type": "data",
                        "symmetric": False,
                        "array": [100 * (gain.high - gain.value) for _, gain in own],
                        "arrayminus": [100 * (gain.value - gain.low) for _, gain in own],
                        "color": run.color,
                        "thickness": 2,
                        "width": 4,
                    },
                    "marker": {"color": run.color, "size": 9, "symbol": SYMBOLS[place % len(SYMBOLS)]},
                    "name": escape_tags(run.name),
                    "meta": run.position,
                    "customdata": [metric.format_gain(gain) for metric, gain in own],
                    "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>",
                }
            )
        height = 64 + ROW_HEIGHT * len(titles) * max(1, len(others))
        ticks = {"tickvals": list(range(len(titles))), "ticktext": titles, "range": [len(titles) - 0.5, -0.5]}
        title = f"difference from {escape_tags(first.name)}, points"
        x = build_titled_axis(title, zeroline=True, zerolinecolor=MUTED, zerolinewidth=1.5)
        figure = build_figure(traces, height=height, x=x, y={**ticks, "showgrid": False, "linecolor": GRID})
        parts = "; ".join(f"{metric.title}, {run.name}: {metric.format_gain(gain)}" for metric, run, gain in gains)
        label = f"Differences from {first.name} on {data}: {parts}."
        result.append((first, builder.add_plot(f"differences-{first.position}", figure, label, "forest")))
    return result


def _build_direction_cells(
    runs: Sequence[ReportRun],
) -> tuple[list[Metric], list[tuple[ReportRun, dict[str, list[MetricCell]]]]]:
    """Return the metrics of cross-view retrieval, and table cells of each run by direction of retrieval."""
    evaluated = [(run, ways) for run in runs if (ways := run.evaluation.get("directions"))]
    metrics = collect_metrics_from_rows(values for _, ways in evaluated for values in ways.values())
    return metrics, [
        (
            run,
            {
                way: [build_metric_cell(m, values.get(m.key, {}).get("value"), values.get(m.key)) for m in metrics]
                for way, values in ways.items()
            },
        )
        for run, ways in evaluated
    ]
