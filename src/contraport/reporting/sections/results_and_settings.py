"""Report sections with the results and the settings of all runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from contraport._utils.formatting import join_names
from contraport.metrics import Metric, collect_metrics_for_display
from contraport.metrics.registry import INITIAL_ENCODER_BASELINE_TITLES
from contraport.reporting.html_page_parts import PageAssets, PlotElement, Section
from contraport.reporting.plotly_figures import (
    GRID_COLOR,
    MUTED_COLOR,
    build_figure,
    build_line_trace,
    build_titled_axis,
    escape_tags,
)
from contraport.reporting.reported_run import ReportedRun

ROBUSTNESS_GROUP = "robustness"  # name of the group of metrics on corrupted images, which have a section of their own
MARKER_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star")  # of plotly, by run


def build_results_section(assets: PageAssets) -> Section:
    """Build the section with metric tables, differences between runs, and notes."""
    runs = assets.runs
    metrics = [metric for metric in list_evaluated_metrics(runs) if metric.group != ROBUSTNESS_GROUP]
    notes = [f"{run.name} has no curves: no metrics are logged yet." for run in runs if not run.metrics_rows]
    notes += [f"{run.name} is not evaluated; run contraport evaluate {run.path}" for run in runs if not run.evaluation]
    for run in runs:
        diverged = (row["step"] for row in run.metrics_rows if not math.isfinite(row.get("loss") or 0.0))
        if (step := next(diverged, None)) is not None:
            notes.append(f"{run.name}: the loss is not finite at step {step:,}.")
    evaluated = {run.name: run.evaluation.get("notes", []) for run in runs if run.evaluation}
    for note in dict.fromkeys(note for of_run in evaluated.values() for note in of_run):
        names = [name for name, of_run in evaluated.items() if note in of_run]
        notes.append(note if len(names) == len(runs) else f"{join_names(names)}: {note}")
    by_run = [(run, by_direction) for run in runs if (by_direction := run.evaluation.get("directions"))]
    retrieval_metrics = collect_metrics_for_display(row for _, by_direction in by_run for row in by_direction.values())

    def cells(values: Mapping[str, Any]) -> list[MetricCell]:
        return [build_metric_cell(m, values.get(m.key, {}).get("value"), values.get(m.key)) for m in retrieval_metrics]

    values = {
        "groups": build_metric_table_per_dataset(runs, metrics),
        "metrics": metrics,
        "notes": notes,
        "differing": [(name, texts) for name, texts in setting_texts_by_name(runs).items() if len(set(texts)) > 1],
        "differences": _add_run_difference_plot_per_dataset(assets, metrics),
        "retrieval_metrics": retrieval_metrics,
        "retrieval_cells": [(run, {name: cells(of) for name, of in of_run.items()}) for run, of_run in by_run],
    }
    return Section("results", "Results", values)


def build_settings_section(assets: PageAssets) -> Section:
    """Build the section with all settings, and the encoder, temperature and speed of every run."""
    runs = assets.runs
    as_trained = {
        "encoder": [run.encoder for run in runs],
        "last temperature": [_format_mean_over_time(run.metrics_rows[-1:], "temperature", "{:.3g}") for run in runs],
        "steps": [_format_mean_over_time(run.metrics_rows[-1:], "step", "{:,.0f}") for run in runs],
        "seconds": [_format_seconds_without_unit(run.training_seconds) for run in runs],
        "items per second": [_format_mean_over_time(run.metrics_rows, "images_per_second", "{:,.0f}") for run in runs],
        "share of time waiting for data": [
            _format_mean_over_time(run.metrics_rows, "data_wait", "{:.1%}") for run in runs
        ],
    }
    return Section("settings", "Settings", {"settings": setting_texts_by_name(runs), "as_trained": as_trained})


class DifferencePlot(NamedTuple):
    """Forest plot of each run's differences from the first run on the same data."""

    first_run: ReportedRun
    element: PlotElement


def _add_run_difference_plot_per_dataset(assets: PageAssets, metrics: Sequence[Metric]) -> list[DifferencePlot]:
    """Add a forest plot of differences between runs for each data set."""
    metrics = [metric for metric in metrics if metric.is_shown_in_percent and metric.better_direction != "neither"]
    result = []
    for data in dict.fromkeys(run.evaluated_or_training_data_name for run in assets.runs):
        first, *others = [run for run in assets.runs if run.evaluated_or_training_data_name == data]
        gains = [
            (metric, run, gain)
            for metric in metrics
            for run in others
            if (gain := run.find_stored_difference(first, metric.key)) is not None
        ]
        if not gains:
            continue
        titles = list(dict.fromkeys(escape_tags(metric.title) for metric, *_ in gains))
        traces = []
        for place, run in enumerate(others):
            own = [(metric, gain) for metric, of, gain in gains if of is run]
            shift = 0.36 * (place - (len(others) - 1) / 2) / max(1, len(others) - 1)
            x = [100 * gain.value for _, gain in own]
            y = [titles.index(escape_tags(metric.title)) + shift for metric, _ in own]
            high = [100 * (gain.high - gain.value) for _, gain in own]
            low = [100 * (gain.value - gain.low) for _, gain in own]
            bars = {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "color": run.color}
            texts = [metric.format_difference(gain) for metric, gain in own]
            marker = {"color": run.color, "size": 9, "symbol": MARKER_SYMBOLS[place % len(MARKER_SYMBOLS)]}
            style = {"mode": "markers", "marker": marker, "error_x": bars | {"thickness": 2, "width": 4}}
            hover = {"customdata": texts, "hovertemplate": "%{customdata}<extra>%{fullData.name}</extra>"}
            traces.append(build_line_trace(run, x, y, **style, **hover))
        height = 64 + 24 * len(titles) * max(1, len(others))  # a row for each metric and run
        ticks = {"tickvals": list(range(len(titles))), "ticktext": titles, "range": [len(titles) - 0.5, -0.5]}
        title = f"difference from {escape_tags(first.name)}, points"
        axis = build_titled_axis(title, zeroline=True, zerolinecolor=MUTED_COLOR, zerolinewidth=1.5)
        figure = build_figure(traces, height=height, x=axis, y={**ticks, "showgrid": False, "linecolor": GRID_COLOR})
        parts = "; ".join(
            f"{metric.title}, {run.name}: {metric.format_difference(gain)}" for metric, run, gain in gains
        )
        label = f"Differences from {first.name} on {data}: {parts}."
        element = assets.add_plot(f"differences-{first.position}", figure, label, "forest")
        result.append(DifferencePlot(first, element))
    return result


MISSING_VALUE_TEXT = "–"  # in a table cell without a value


class MetricCell(NamedTuple):
    """Table cell with value, interval, and whether it is significantly the best."""

    text: str
    is_significantly_best: bool
    interval: str = ""


class EncoderRow(NamedTuple):
    """Table row of a run's trained encoder, or of a baseline."""

    name: str
    run: ReportedRun | None
    cells: list[MetricCell]
    training_time_text: str


class MetricTable(NamedTuple):
    """Table of metrics of all encoders evaluated on a data set, baselines first."""

    data_name: str
    size_sentence: str
    encoder_rows: list[EncoderRow]


def list_evaluated_metrics(runs: Sequence[ReportedRun]) -> list[Metric]:
    """List the metrics with a value in at least one run."""
    return collect_metrics_for_display(row for run in runs if run.evaluation for row in run.metrics_by_encoder.values())


def build_metric_table_per_dataset(runs: Sequence[ReportedRun], metrics: Sequence[Metric]) -> list[MetricTable]:
    """Build one table of metrics for each data set on which a run was evaluated."""
    runs_by_data: dict[str, list[ReportedRun]] = {}
    for run in runs:
        runs_by_data.setdefault(run.evaluated_or_training_data_name, []).append(run)
    evaluated = {data: of for data, of in runs_by_data.items() if any(run.metrics_by_encoder for run in of)}
    return [_build_metric_table(data, several, metrics) for data, several in evaluated.items()]


def setting_texts_by_name(runs: Sequence[ReportedRun]) -> dict[str, list[str]]:
    """Return the formatted values of each training setting, one per run."""
    return {name: [_format_setting(run.config.get(name)) for run in runs] for run in runs for name in run.config}


def _build_metric_table(data: str, runs: list[ReportedRun], metrics: Sequence[Metric]) -> MetricTable:
    """Build the metric table of a data set, with baselines above trained encoders."""
    sources = [*_list_distinct_baselines(runs), *(_EvaluatedEncoder(run.name, run, "trained") for run in runs)]
    best = {metric.key: _find_significantly_best_encoder(metric, sources) for metric in metrics}
    encoders = []
    for source in sources:
        values, run = source.metric_values_by_key, source.run if source.row == "trained" else None
        intervals = source.run.evaluation.get("intervals", {}).get(source.row, {})
        cells = [
            build_metric_cell(m, values.get(m.key), intervals.get(m.key), is_significantly_best=source is best[m.key])
            for m in metrics
        ]
        seconds = MISSING_VALUE_TEXT if run is None else _format_seconds_without_unit(run.training_seconds)
        encoders.append(EncoderRow(source.name, run, cells, seconds))
    return MetricTable(data, _describe_dataset_sizes(data, runs), encoders)


class _EvaluatedEncoder(NamedTuple):
    """Trained encoder of a run, or a baseline that was evaluated with it.

    Attributes:
        row: row of the run's evaluation: "trained" or a baseline such as "raw".
    """

    name: str
    run: ReportedRun
    row: str

    @property
    def metric_values_by_key(self) -> dict[str, Any]:
        """Metric values by metric key, empty if the encoder was not evaluated."""
        return dict(self.run.metrics_by_encoder.get(self.row, {}))

    def has_same_values(self, other: _EvaluatedEncoder) -> bool:
        """Return whether two encoders have equal values in all metrics that both have."""
        shared = self.metric_values_by_key.keys() & other.metric_values_by_key.keys()
        return len(shared) > 0 and all(
            self.metric_values_by_key[key] == other.metric_values_by_key[key] for key in shared
        )

    def differs_significantly(self, other: _EvaluatedEncoder, key: str) -> bool:
        """Return whether the interval of the difference from another encoder excludes zero.

        False if no difference is stored.
        """
        if self.row != "trained":
            return other.row == "trained" and other.differs_significantly(self, key)
        if other.row == "trained":
            difference = self.run.find_stored_difference(other.run, key)
        else:  # the baseline of another run counts if the run's own baseline has the same values
            own = self._replace(row=other.row)
            difference = self.run.find_stored_difference(other.row, key) if own.has_same_values(other) else None
        return difference is not None and difference.is_significant


def _list_distinct_baselines(runs: list[ReportedRun]) -> list[_EvaluatedEncoder]:
    """List the distinct baselines of all runs, under unambiguous names."""
    baselines: list[_EvaluatedEncoder] = []
    for row in ("raw", *INITIAL_ENCODER_BASELINE_TITLES):
        for run in runs:
            names = {"raw": "raw inputs", "given": f"{run.encoder} as given", "untrained": f"untrained {run.encoder}"}
            source = _EvaluatedEncoder(names[row], run, row)
            equal = (k for k, other in enumerate(baselines) if other.row == row and other.has_same_values(source))
            place = next(equal, None)
            if place is None and source.metric_values_by_key:
                baselines.append(source)
            elif place is not None and len(source.metric_values_by_key) > len(baselines[place].metric_values_by_key):
                baselines[place] = source  # the same encoder, evaluated in more metrics
    repeated = Counter(source.name for source in baselines)
    return [
        source if repeated[source.name] == 1 else source._replace(name=f"{source.name} (for {source.run.name})")
        for source in baselines
    ]


def _describe_dataset_sizes(data: str, runs: Iterable[ReportedRun]) -> str:
    """Return a sentence with the numbers of training and test items."""
    names_by_size: dict[str, list[str]] = {}
    for run in runs:
        if {"train_items", "test_items", "uniformity_items"} <= run.evaluation.keys():
            train, test, pairs = (run.evaluation[f"{part}_items"] for part in ("train", "test", "uniformity"))
            subset = f" (uniformity: a random {pairs:,} of them)" if pairs < test else ""
            names_by_size.setdefault(f"{train:,} training and {test:,} test items{subset}", []).append(run.name)
    parts = [
        size if len(names_by_size) == 1 else f"{size} of {join_names(names)}" for size, names in names_by_size.items()
    ]
    return f"On {data}: {'; '.join(parts)}." if parts else ""


def _find_significantly_best_encoder(metric: Metric, sources: Sequence[_EvaluatedEncoder]) -> _EvaluatedEncoder | None:
    """Find the encoder that is significantly better than all others, or None.

    None as well if a run has no value of the metric.
    """
    measured = [source for source in sources if source.metric_values_by_key.get(metric.key) is not None]
    runs = [source for source in sources if source.row == "trained"]
    if len(measured) < 2 or metric.better_direction == "neither" or not all(source in measured for source in runs):
        return None
    top = (max if metric.better_direction == "higher" else min)(
        measured, key=lambda source: float(source.metric_values_by_key[metric.key])
    )
    significant = all(top.differs_significantly(source, metric.key) for source in measured if source is not top)
    return top if significant else None


def build_metric_cell(
    metric: Metric, value: float | None, interval: Mapping[str, float] | None, *, is_significantly_best: bool = False
) -> MetricCell:
    """Build a cell with a value and its interval, or a dash if missing."""
    if value is None or not math.isfinite(value):
        return MetricCell(MISSING_VALUE_TEXT, False)
    ends = "" if interval is None else format_interval(metric, interval["low"], interval["high"])
    return MetricCell(metric.format(value).replace("-", "−"), is_significantly_best, ends)


def format_interval(metric: Metric, low: float, high: float) -> str:
    """Format an interval, as in "84.2–86.1%", or with "to" if an end is negative.

    >>> from contraport.metrics import find_metric
    >>> format_interval(find_metric("knn"), 0.842, 0.861), format_interval(find_metric("uniformity"), -2.0, -1.5)
    ('84.2–86.1%', '−2.000 to −1.500')
    """
    ends = [metric.format(end).replace("-", "−") for end in (low, high)]
    if min(low, high) < 0:
        return " to ".join(ends)
    return "–".join([ends[0].removesuffix("%"), ends[1]])


def _format_seconds_without_unit(value: float | None) -> str:
    """Format seconds with one decimal below 100, else as an integer."""
    if value is None:
        return MISSING_VALUE_TEXT
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _format_mean_over_time(rows: Sequence[Mapping[str, Any]], key: str, pattern: str) -> str:
    """Format the mean of a logged metric over the training time, or a dash if none was logged."""
    rows = [row for row in rows if row.get(key) is not None]
    seconds = np.diff([row["seconds"] for row in rows], prepend=0.0).clip(1e-3)
    return pattern.format(np.average([row[key] for row in rows], weights=seconds)) if rows else MISSING_VALUE_TEXT


def _format_setting(value: object) -> str:
    """Format a setting for a table, with mappings as "name=value, ..."."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or MISSING_VALUE_TEXT
    return MISSING_VALUE_TEXT if value in (None, []) else str(value)
