"""Tables of the report: metrics with confidence intervals, settings of the runs, and training speed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from contraport._utils.formatting import join_names
from contraport.metrics import Metric, collect_metrics_from_rows
from contraport.metrics.registry import BEFORE_TRAINING
from contraport.reporting.report_run import ReportRun

MISSING_VALUE = "–"


class MetricCell(NamedTuple):
    """Value of a metric with its confidence interval, as texts; `is_significantly_best` compares all encoders."""

    text: str
    is_significantly_best: bool
    interval: str = ""


class EncoderRow(NamedTuple):
    """Metrics of one encoder: the trained encoder of a run, or a baseline, whose `run` is None."""

    name: str
    run: ReportRun | None
    cells: list[MetricCell]
    training_time_text: str


class DatasetTable(NamedTuple):
    """Table of metrics of all encoders that were evaluated on the same data set, baselines first."""

    data_name: str
    size_sentence: str
    encoder_rows: list[EncoderRow]


def list_evaluated_metrics(runs: Sequence[ReportRun]) -> list[Metric]:
    """Return all metrics that have a value in at least one of the runs."""
    return collect_metrics_from_rows(row for run in runs if run.evaluation for row in run.rows_by_encoder.values())


def build_metric_tables(runs: Sequence[ReportRun], metrics: Sequence[Metric]) -> list[DatasetTable]:
    """Build one table of metrics for each data set on which runs were evaluated."""
    names = dict.fromkeys(run.data_name for run in runs)
    return [_build_table(data, [run for run in runs if run.data_name == data], metrics) for data in names]


def compare_settings(runs: Sequence[ReportRun]) -> list[tuple[str, list[str], bool]]:
    """Return name, values in all runs, and whether the values differ, for each training setting."""
    rows = {key: [_format_setting(run.config.get(key)) for run in runs] for run in runs for key in run.config}
    return [(key, values, len(set(values)) > 1) for key, values in rows.items()]


def summarize_training_speed(runs: Sequence[ReportRun]) -> list[tuple[str, list[str]]]:
    """Return rows of steps, seconds, items per second and data waiting time, with one text per run."""
    return [
        ("steps", [f"{run.metrics_rows[-1]['step']:,}" if run.metrics_rows else MISSING_VALUE for run in runs]),
        ("seconds", [_format_seconds(run.training_seconds) for run in runs]),
        ("items per second", [_format_mean(run, "images_per_second", "{:,.0f}") for run in runs]),
        ("share of time waiting for data", [_format_mean(run, "data_wait", "{:.1%}") for run in runs]),
    ]


def _build_table(data: str, runs: list[ReportRun], metrics: Sequence[Metric]) -> DatasetTable:
    """Build the table of metrics of one data set: distinct baselines first, then the runs."""
    sources = [*_distinct_baselines(runs), *(_EvaluatedEncoder(run.name, run, "trained") for run in runs)]
    best = {metric.key: _find_best(metric, sources) for metric in metrics}
    encoders = []
    for source in sources:
        values, run = source.metric_values, source.run if source.row == "trained" else None
        intervals = source.run.evaluation.get("intervals", {}).get(source.row, {})
        cells = [
            build_metric_cell(m, values.get(m.key), intervals.get(m.key), is_best=source is best[m.key])
            for m in metrics
        ]
        seconds = MISSING_VALUE if run is None else _format_seconds(run.training_seconds)
        encoders.append(EncoderRow(source.name, run, cells, seconds))
    return DatasetTable(data, _describe_sizes(data, runs), encoders)


class _EvaluatedEncoder(NamedTuple):
    """Encoder with metrics: the trained encoder of a run, or a baseline that was evaluated with the run."""

    name: str
    run: ReportRun
    row: str

    @property
    def metric_values(self) -> dict[str, Any]:
        return dict(self.run.rows_by_encoder.get(self.row, {}))

    def has_same_values(self, other: _EvaluatedEncoder) -> bool:
        """Return whether two encoders have equal values in all metrics that both have."""
        shared = self.metric_values.keys() & other.metric_values.keys()
        return len(shared) > 0 and all(self.metric_values[key] == other.metric_values[key] for key in shared)

    def differs_significantly(self, other: _EvaluatedEncoder, key: str) -> bool:
        """Return whether the confidence interval of the difference of two encoders excludes zero; False if unknown."""
        if self.row != "trained":
            return other.row == "trained" and other.differs_significantly(self, key)
        if other.row == "trained":
            difference = self.run.paired_difference(other.run, key)
        else:  # the baseline of another run counts if the run's own baseline has the same values
            own = self._replace(row=other.row)
            difference = self.run.paired_difference(other.row, key) if own.has_same_values(other) else None
        return difference is not None and difference.is_significant


def _distinct_baselines(runs: list[ReportRun]) -> list[_EvaluatedEncoder]:
    """Return the baselines of all runs without duplicates; repeated names get the run's name appended."""
    baselines: list[_EvaluatedEncoder] = []
    for row in ("raw", *BEFORE_TRAINING):
        for run in runs:
            names = {"raw": "raw inputs", "given": f"{run.encoder} as given", "untrained": f"untrained {run.encoder}"}
            source = _EvaluatedEncoder(names[row], run, row)
            equal = (k for k, other in enumerate(baselines) if other.row == row and other.has_same_values(source))
            place = next(equal, None)
            if place is None and source.metric_values:
                baselines.append(source)
            elif place is not None and len(source.metric_values) > len(baselines[place].metric_values):
                baselines[place] = source  # the same encoder, evaluated in more metrics
    repeated = Counter(source.name for source in baselines)
    return [
        source if repeated[source.name] == 1 else source._replace(name=f"{source.name} (for {source.run.name})")
        for source in baselines
    ]


def _describe_sizes(data: str, runs: Iterable[ReportRun]) -> str:
    """Write a sentence with the numbers of training and test items, for each run where they differ."""
    names_by_size: dict[str, list[str]] = {}
    for run in runs:
        if run.evaluation and "test_items" in run.evaluation:
            train, test, pairs = (run.evaluation[f"{part}_items"] for part in ("train", "test", "uniformity"))
            subset = f" (uniformity: a random {pairs:,} of them)" if pairs < test else ""
            names_by_size.setdefault(f"{train:,} training and {test:,} test items{subset}", []).append(run.name)
    parts = [
        size if len(names_by_size) == 1 else f"{size} of {join_names(names)}" for size, names in names_by_size.items()
    ]
    return f"On {data}: {'; '.join(parts)}." if parts else ""


def _find_best(metric: Metric, sources: Sequence[_EvaluatedEncoder]) -> _EvaluatedEncoder | None:
    """Return the encoder that is significantly better than all others in a metric, or None.

    None as well if a run has no value of the metric.
    """
    measured = [source for source in sources if source.metric_values.get(metric.key) is not None]
    runs = [source for source in sources if source.row == "trained"]
    if len(measured) < 2 or metric.better_direction == "neither" or not all(source in measured for source in runs):
        return None
    top = (max if metric.better_direction == "higher" else min)(
        measured, key=lambda source: float(source.metric_values[metric.key])
    )
    significant = all(top.differs_significantly(source, metric.key) for source in measured if source is not top)
    return top if significant else None


def build_metric_cell(
    metric: Metric, value: float | None, interval: Mapping[str, float] | None, *, is_best: bool = False
) -> MetricCell:
    """Build the cell of a value with its confidence interval; a dash if the value is missing or not finite."""
    if value is None or not math.isfinite(value):
        return MetricCell(MISSING_VALUE, False)
    ends = "" if interval is None else format_interval(metric, interval["low"], interval["high"])
    return MetricCell(metric.format(value).replace("-", "−"), is_best, ends)


def format_interval(metric: Metric, low: float, high: float) -> str:
    """Format a confidence interval: "84.2–86.1%", or "−2.000 to −1.500" if an end is negative.

    >>> from contraport.metrics import metric_by_key
    >>> format_interval(metric_by_key("knn"), 0.842, 0.861), format_interval(metric_by_key("uniformity"), -2.0, -1.5)
    ('84.2–86.1%', '−2.000 to −1.500')
    """
    ends = [metric.format(end).replace("-", "−") for end in (low, high)]
    if min(low, high) < 0:
        return " to ".join(ends)
    return "–".join([ends[0].removesuffix("%"), ends[1]])


def _format_seconds(value: float | None) -> str:
    if value is None:
        return MISSING_VALUE
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _format_mean(run: ReportRun, key: str, pattern: str) -> str:
    values = [row[key] for row in run.metrics_rows if row.get(key) is not None]
    return pattern.format(sum(values) / len(values)) if values else MISSING_VALUE


def _format_setting(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or MISSING_VALUE
    return MISSING_VALUE if value is None else str(value)
