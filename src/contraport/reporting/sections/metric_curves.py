"""Report sections with metrics by training step, epoch and corruption severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contraport.metrics import Metric, collect_metrics_for_display
from contraport.metrics.registry import BASELINE_TITLES, INITIAL_ENCODER_BASELINE_TITLES
from contraport.plots.curves import MAX_POINTS_PER_LINE, column_title, evenly_spaced_rows_with_key, is_percent_column
from contraport.reporting.html_page_parts import PageAssets, Section
from contraport.reporting.plotly_figures import (
    CURVE_HEIGHT_PIXELS,
    MUTED_COLOR,
    PERCENT_TICK_FORMAT,
    PlotlyFigure,
    build_axis_from_zero,
    build_figure,
    build_line_trace,
    build_titled_axis,
)
from contraport.reporting.reported_run import ReportedRun
from contraport.reporting.sections.results_and_settings import (
    ROBUSTNESS_GROUP,
    build_metric_table_per_dataset,
    list_evaluated_metrics,
)

CURVE_NOTES_BY_COLUMN = {
    "loss": "Losses of different objectives have different scales: compare their shape, not their level.",
    "mi_bound": "From the loss of training batches, not test items; at most the logarithm of the number of candidates.",
    "lr": "A setting, not a result.",
    "temperature": "A lower temperature weighs only the closest pairs.",
    "plan_mass": "Of training batches. Below 100% the objective gives pairs of high cost less mass.",
}
"""Notes below the training curves, by logged column."""


def build_training_curves_section(assets: PageAssets) -> Section | None:
    """Build the section of training curves, or None if nothing was logged."""
    monitored = collect_metrics_for_display(row for run in assets.runs for row in run.metrics_rows)
    hidden_if_constant = ("temperature", "plan_mass")
    curves = []
    for key in ("loss", *(metric.key for metric in monitored), "mi_bound", "lr", *hidden_if_constant):
        # Rounded, since the mass of a balanced plan varies by rounding errors.
        values = [{round(row[key], 4) for row in run.metrics_rows if row.get(key) is not None} for run in assets.runs]
        if not any(len(of_run) > (key in hidden_if_constant) for of_run in values):
            continue
        title, pattern = column_title(key), "{:.1%}" if is_percent_column(key) else "{:.3g}"
        last = [
            f"{run.name}: {pattern.format([row[key] for row in run.metrics_rows if row.get(key) is not None][-1])}"
            for run, of_run in zip(assets.runs, values, strict=True)
            if of_run
        ]
        label = f"{title} over the training steps; last values: {'; '.join(last)}."
        figure = draw_training_curve(assets.runs, key)
        if is_percent_column(key):
            figure["layout"]["yaxis"] |= {"tickformat": PERCENT_TICK_FORMAT}
        plot = assets.add_plot(f"curve-{key}", figure, label)
        assets.script_data.setdefault("along", {})[plot.element_id] = [
            positions
            for run in assets.runs
            if (positions := _compute_positions_by_axis(run, evenly_spaced_rows_with_key(run.metrics_rows, key)))
        ]
        note = CURVE_NOTES_BY_COLUMN.get(key, "Measured on training items during training, not on test items.")
        curves.append((title, plot, note))
    # Titles of the axes by key of the positions in the script data.
    axes = {"step": "step", "epoch": "epoch", "seconds": "training time, s", "share": "share of the run"}
    values_by_name = {"curves": curves, "max_points": MAX_POINTS_PER_LINE, "axes": axes}
    return Section("training", "Training", values_by_name) if curves else None


def draw_training_curve(runs: Sequence[ReportedRun], key: str) -> PlotlyFigure:
    """Draw a logged metric over the training steps, one line per run."""
    rows = [(run, evenly_spaced_rows_with_key(run.metrics_rows, key)) for run in runs]
    lines = [build_line_trace(run, [row["step"] for row in of], [row[key] for row in of]) for run, of in rows if of]
    x = build_axis_from_zero("step")
    return build_figure(lines, height=CURVE_HEIGHT_PIXELS, hovermode="x unified", x=x, y={"exponentformat": "power"})


def _compute_positions_by_axis(run: ReportedRun, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return x-axis positions of the logged rows, by axis such as "step" or "epoch"."""
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


EPOCH_CURVE_METRIC_GROUPS = ("links", "accuracy", "few-labels", "retrieval", "clustering", "geometry", "domains")
"""Names of the groups of metrics that are drawn over the epochs, most important first."""


def build_epoch_curves_section(assets: PageAssets) -> Section | None:
    """Build the section of metrics over epochs, or None with too few epochs."""
    runs = [run for run in assets.runs if len(list_evaluated_epochs_and_rows(run)) > 2]
    metrics = [metric for metric in list_evaluated_metrics(runs) if metric.group in EPOCH_CURVE_METRIC_GROUPS]
    metrics.sort(key=lambda metric: EPOCH_CURVE_METRIC_GROUPS.index(metric.group))
    # Of Recall@1, Recall@5, ... only the first.
    families = {metric.key.partition("@")[0]: metric for metric in reversed(metrics)}
    curves = []
    for metric in [metric for metric in metrics if metric in families.values()][:6]:
        last = [
            f"{run.name}: {metric.format(values[-1].value)}"
            for run in runs
            if (values := _list_epoch_values(run, metric))
        ]
        label = f"{metric.title} over the epochs; last values: {'; '.join(last)}."
        key = f"epochs-{metric.key.replace('@', '-')}"
        curves.append((metric, assets.add_plot(key, draw_epoch_curves(runs, metric), label)))
    return Section("epochs", "Epochs", {"curves": curves}) if curves else None


def list_evaluated_epochs_and_rows(run: ReportedRun) -> list[tuple[int, str]]:
    """List each evaluated epoch and its row in the evaluation, such as (5, "epoch 5")."""
    last = run.evaluation.get("epochs")
    epochs = [(int(name.removeprefix("epoch ")), name) for name in run.metrics_by_encoder if name.startswith("epoch ")]
    epochs += [(0, row) for row in INITIAL_ENCODER_BASELINE_TITLES if row in run.metrics_by_encoder]
    epochs += [(last, "trained")] if last is not None else []
    return sorted(epochs)


def draw_epoch_curves(runs: Sequence[ReportedRun], metric: Metric) -> PlotlyFigure:
    """Draw a metric with error bars over the epochs, one line per run."""
    traces: list[dict[str, Any]] = []
    for run in runs:
        values = _list_epoch_values(run, metric)
        x, y = [one.epoch for one in values], [one.value for one in values]
        high, low = [one.high - one.value for one in values], [one.value - one.low for one in values]
        bars = {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "color": run.color, "width": 2}
        settings = {"error_y": bars | {"thickness": 1}} if any(high) or any(low) else {}
        traces.append(build_line_trace(run, x, y, mode="lines+markers", **settings))
    raw = next((value for run in runs if (value := run.metric_value(metric.key, "raw")) is not None), None)
    shapes: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    if raw is not None and len({run.evaluated_or_training_data_name for run in runs}) == 1:
        dotted = {"color": MUTED_COLOR, "width": 1.2, "dash": "dot"}
        shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": raw, "y1": raw, "line": dotted}]
        text = {"text": "raw<br>inputs", "x": 1, "xref": "paper", "xanchor": "left", "xshift": 4, "y": raw}
        annotations = [text | {"align": "left", "showarrow": False, "font": {"size": 11, "color": MUTED_COLOR}}]
        # Shapes do not extend the axis, so an invisible point does.
        point = {"type": "scatter", "x": [0], "y": [raw], "mode": "markers", "marker": {"opacity": 0}}
        traces.append(point | {"hoverinfo": "skip"})
    ticks = {"tickformat": PERCENT_TICK_FORMAT} if metric.is_shown_in_percent else {}
    x_axis = build_axis_from_zero("epoch", max(list_evaluated_epochs_and_rows(run)[-1][0] for run in runs))
    figure = build_figure(
        traces,
        height=CURVE_HEIGHT_PIXELS,
        hovermode="x unified",
        x=x_axis,
        y=ticks,
        shapes=shapes,
        annotations=annotations,
    )
    figure["layout"]["margin"]["r"] = 46 if annotations else 8
    return figure


class _EpochValue(NamedTuple):
    """Metric value at one epoch, with the ends of its confidence interval."""

    epoch: int
    value: float
    low: float
    high: float


def _list_epoch_values(run: ReportedRun, metric: Metric) -> list[_EpochValue]:
    """List the values of a metric at all evaluated epochs."""
    intervals = run.evaluation.get("intervals", {})
    values = []
    for epoch, row in list_evaluated_epochs_and_rows(run):
        value = run.metrics_by_encoder[row].get(metric.key)
        if value is not None:
            ends = intervals.get(row, {}).get(metric.key, {"low": value, "high": value})
            values.append(_EpochValue(epoch, value, ends["low"], ends["high"]))
    return values


_DASH_STYLE_BY_BASELINE = {"raw": "dot", "given": "dash", "untrained": "dash"}  # plotly dash styles by row


def build_robustness_section(assets: PageAssets) -> Section | None:
    """Build the section on robustness to corruptions, or None if none was evaluated."""
    metrics = [metric for metric in list_evaluated_metrics(assets.runs) if metric.group == ROBUSTNESS_GROUP]
    kinds = list(dict.fromkeys(metric.key.partition("@")[0] for metric in metrics))
    rows = ("trained", *_list_baselines_equal_in_all_runs(assets.runs))
    values = (run.metric_value(metric.key, row) for run in assets.runs for metric in metrics for row in rows)
    lowest = min((value for value in values if value is not None), default=0.0)
    curves = []
    for kind in kinds:
        of_kind = [metric for metric in metrics if metric.key.partition("@")[0] == kind]
        name, worst = of_kind[0].title.partition("@")[0], of_kind[-1]
        last = [
            f"{run.name} {worst.format(value)}"
            for run in assets.runs
            if (value := run.metric_value(worst.key)) is not None
        ]
        label = f"{name}: accuracy over the severity; at severity {_parse_severity(worst)}: {'; '.join(last)}."
        figure = draw_corruption_curves(assets.runs, of_kind, lowest)
        curves.append((name, assets.add_plot(f"robust-{kind}", figure, label)))
    if not curves:
        return None
    dash_names = {"dot": "dotted", "dash": "dashed"}
    baselines = [f"{BASELINE_TITLES[row]} ({dash_names[_DASH_STYLE_BY_BASELINE[row]]})" for row in rows[1:]]
    groups = build_metric_table_per_dataset(assets.runs, metrics)
    values_by_name = {"curves": curves, "metrics": metrics, "groups": groups, "baselines": baselines}
    return Section("robustness", "Robustness", values_by_name)


def draw_corruption_curves(
    runs: Sequence[ReportedRun], severity_metrics: Sequence[Metric], lowest_accuracy: float
) -> PlotlyFigure:
    """Draw accuracy over a corruption's severity, with gray lines for baselines.

    The vertical axis starts below `lowest_accuracy`, the lowest of all panels.
    """
    points = [(0, "linear_probe"), *((_parse_severity(metric), metric.key) for metric in severity_metrics)]
    style = {"mode": "lines+markers", "hovertemplate": "%{y:.1%}<extra>%{fullData.name}</extra>"}
    gray: dict[str, Any] = {"marker": {"color": MUTED_COLOR, "size": 4}, "meta": -1}
    sources: list[tuple[ReportedRun, str, dict[str, Any]]] = []
    for row in _list_baselines_equal_in_all_runs(runs):
        line = {"color": MUTED_COLOR, "width": 1.2, "dash": _DASH_STYLE_BY_BASELINE[row]}
        sources.append((runs[0], row, gray | {"name": BASELINE_TITLES[row], "line": line}))
    sources += [(run, "trained", {}) for run in runs]
    lines = []
    for run, row, settings in sources:
        if values := [(at, value) for at, key in points if (value := run.metric_value(key, row)) is not None]:
            x, y = zip(*values, strict=True)
            lines.append(build_line_trace(run, x, y, **style | settings))
    y_axis = {"tickformat": PERCENT_TICK_FORMAT, "range": [max(0.0, lowest_accuracy - 0.05), 1.0]}
    return build_figure(lines, height=210, hovermode="x unified", x=build_titled_axis("severity", dtick=1), y=y_axis)


def _parse_severity(metric: Metric) -> int:
    """Return the severity in a metric key, such as 3 for "noise@3"."""
    return int(metric.key.partition("@")[2])


def _list_baselines_equal_in_all_runs(runs: Sequence[ReportedRun]) -> list[str]:
    """List the baselines whose linear probe accuracy is the same in all runs.

    The list is empty if the runs have different data.
    """
    values = {row: {run.metric_value("linear_probe", row) for run in runs} for row in _DASH_STYLE_BY_BASELINE}
    shared = [row for row, of_row in values.items() if len(of_row) == 1 and None not in of_row]
    return shared if len({run.evaluated_or_training_data_name for run in runs}) == 1 else []
