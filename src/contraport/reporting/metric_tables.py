"""Tables of the report: metrics with intervals, settings, and training speed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from contraport._utils.formatting import join_names
from contraport.metrics import Metric, collect_metrics_from_rows
from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BEFORE_TRAINING
from contraport.reporting.report_run import ReportRun

MISSING = "–"


class Cell(NamedTuple):
    """A formatted value, whether it is significantly the best of its metric, and its formatted interval."""

    text: str
    best: bool
    interval: str = ""


class EncoderRow(NamedTuple):
    """Metrics of one encoder, of a run or of a baseline (`run` is None), one cell per metric."""

    name: str
    run: ReportRun | None
    cells: list[Cell]
    seconds: str


class DatasetTable(NamedTuple):
    """Encoders that were evaluated on the same data, and a sentence about its size."""

    data: str
    sizes: str
    encoders: list[EncoderRow]


def evaluated_metrics(runs: Sequence[ReportRun]) -> list[Metric]:
    """Return the metrics that were evaluated for any of the runs."""
    return collect_metrics_from_rows(row for run in runs if run.evaluation for row in run.rows.values())


def build_tables(runs: Sequence[ReportRun], metrics: Sequence[Metric]) -> list[DatasetTable]:
    """Build one table of metrics per data set."""
    names = dict.fromkeys(run.data for run in runs)
    return [_build_table(data, [run for run in runs if run.data == data], metrics) for data in names]


def compare_settings(runs: Sequence[ReportRun]) -> list[tuple[str, list[str], bool]]:
    """Return each setting with its value in every run, and whether the values differ."""
    rows = {key: [_format_setting(run.config.get(key)) for run in runs] for run in runs for key in run.config}
    return [(key, values, len(set(values)) > 1) for key, values in rows.items()]


def training_speed(runs: Sequence[ReportRun]) -> list[tuple[str, list[str]]]:
    """Return the logged speed of the trainings, one value per run."""
    return [
        ("steps", [f"{run.metrics[-1]['step']:,}" if run.metrics else MISSING for run in runs]),
        ("seconds", [_format_seconds(run.seconds) for run in runs]),
        ("items per second", [_format_mean(run, "images_per_second", "{:,.0f}") for run in runs]),
        ("share of time waiting for data", [_format_mean(run, "data_wait", "{:.1%}") for run in runs]),
    ]


def _build_table(data: str, runs: list[ReportRun], metrics: Sequence[Metric]) -> DatasetTable:
    """Build the table of one data set: distinct baselines first, then the runs."""
    sources = [*_distinct_baselines(runs), *(_Source(run.name, run, "trained") for run in runs)]
    best = {metric.key: _find_best(metric, sources) for metric in metrics}
    encoders = [
        EncoderRow(
            source.name,
            source.run if source.row == "trained" else None,
            [_build_cell(metric, source, best[metric.key]) for metric in metrics],
            _format_seconds(source.run.seconds) if source.row == "trained" else MISSING,
        )
        for source in sources
    ]
    return DatasetTable(data, _describe_sizes(data, runs), encoders)


class _Source(NamedTuple):
    """Evaluated encoder: a run with the row of its trained encoder or of a baseline."""

    name: str
    run: ReportRun
    row: str

    @property
    def values(self) -> dict[str, Any]:
        return dict(self.run.rows.get(self.row, {}))

    def interval(self, key: str) -> tuple[float, float] | None:
        """Return the ends of the interval of a metric, or None."""
        ends = (self.run.evaluation or {}).get("intervals", {}).get(self.row, {}).get(key)
        return None if ends is None else (ends["low"], ends["high"])

    def has_same_values(self, other: _Source) -> bool:
        """Whether both have equal values in all metrics that they share."""
        shared = self.values.keys() & other.values.keys()
        return len(shared) > 0 and all(self.values[key] == other.values[key] for key in shared)

    def differs_significantly(self, other: _Source, key: str) -> bool:
        """Whether the interval of the paired difference is known and excludes zero."""
        if self.row == other.row == "trained":
            difference = self.run.difference(other.run, key)
        elif self.row == "trained":
            difference = self.run.difference(other.row, key) if other.run is self.run else None
            difference = difference or self._difference_from_equal_baseline(other, key)
        elif other.row == "trained":
            return other.differs_significantly(self, key)
        else:
            difference = None
        return difference is not None and difference.is_significant

    def _difference_from_equal_baseline(self, baseline: _Source, key: str) -> Difference | None:
        """Return the difference from this run's own baseline if it has the values of another run's."""
        own = _Source("", self.run, baseline.row)
        return self.run.difference(baseline.row, key) if own.has_same_values(baseline) else None


def _distinct_baselines(runs: list[ReportRun]) -> list[_Source]:
    """Return the baselines with different values; equal names get the run's name appended."""
    baselines: list[_Source] = []
    for row in ("raw", *BEFORE_TRAINING):
        for run in runs:
            names = {"raw": "raw inputs", "given": f"{run.encoder} as given", "untrained": f"untrained {run.encoder}"}
            source = _Source(names[row], run, row)
            equal = (k for k, other in enumerate(baselines) if other.row == row and other.has_same_values(source))
            place = next(equal, None)
            if place is None and source.values:
                baselines.append(source)
            elif place is not None and len(source.values) > len(baselines[place].values):
                baselines[place] = source  # the same encoder, evaluated in more metrics
    repeated = Counter(source.name for source in baselines)
    return [
        source if repeated[source.name] == 1 else source._replace(name=f"{source.name} (for {source.run.name})")
        for source in baselines
    ]


def _describe_sizes(data: str, runs: Iterable[ReportRun]) -> str:
    """Return the numbers of training and test items, and of which runs where they differ."""
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


def _find_best(metric: Metric, sources: Sequence[_Source]) -> _Source | None:
    """Return the encoder that is significantly better than all others, None if a run was not evaluated."""
    known = [source for source in sources if source.values.get(metric.key) is not None]
    runs = [source for source in sources if source.row == "trained"]
    if len(known) < 2 or metric.better == "neither" or not all(source in known for source in runs):
        return None
    top = (max if metric.better == "higher" else min)(known, key=lambda source: float(source.values[metric.key]))
    significant = all(top.differs_significantly(source, metric.key) for source in known if source is not top)
    return top if significant else None


def _build_cell(metric: Metric, source: _Source, best: _Source | None) -> Cell:
    value, ends = source.values.get(metric.key), source.interval(metric.key)
    if value is None or not math.isfinite(value):
        return Cell(MISSING, False)
    interval = "" if ends is None else format_interval(metric, *ends)
    return Cell(metric.format(value).replace("-", "−"), source is best, interval)


def format_interval(metric: Metric, low: float, high: float) -> str:
    """Format an interval with its unit once; with a dash unless an end is negative.

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
        return MISSING
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _format_mean(run: ReportRun, key: str, pattern: str) -> str:
    values = [row[key] for row in run.metrics if row.get(key) is not None]
    return pattern.format(sum(values) / len(values)) if values else MISSING


def _format_setting(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or MISSING
    return MISSING if value is None else str(value)
