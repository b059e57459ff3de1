"""The numbers of the page, in tables: what was measured, with which settings, at what speed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from contraport._utils.formatting import join_names
from contraport.metrics import Metric, metrics_of_rows
from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BEFORE
from contraport.reporting.report_run import ReportRun

MISSING = "–"


class Number(NamedTuple):
    """A value of the table as it is written, its interval, and whether it is surely the best of its measure."""

    text: str
    best: bool
    interval: str = ""


class EncoderRow(NamedTuple):
    """What was measured of one encoder: of a run, or of a baseline, which has no run; a cell for each measure."""

    name: str
    run: ReportRun | None
    cells: list[Number]
    seconds: str


class DatasetTable(NamedTuple):
    """The encoders that were measured on the same data, and a sentence about how much of it."""

    data: str
    sizes: str
    encoders: list[EncoderRow]


def measured(runs: Sequence[ReportRun]) -> list[Metric]:
    """Return what was measured of any of the runs: the rows of the table."""
    return metrics_of_rows(row for run in runs if run.evaluation for row in run.evaluation["rows"].values())


def table(runs: Sequence[ReportRun], measures: Sequence[Metric]) -> list[DatasetTable]:
    """Return the values of some measures, data set by data set."""
    return [
        _group(data, [run for run in runs if run.data == data], measures)
        for data in dict.fromkeys(run.data for run in runs)
    ]


def settings(runs: Sequence[ReportRun]) -> list[tuple[str, list[str], bool]]:
    """Return every setting with its value in each run, and whether the runs differ in it."""
    rows = {key: [_written(run.config.get(key)) for run in runs] for run in runs for key in run.config}
    return [(key, values, len(set(values)) > 1) for key, values in rows.items()]


def speeds(runs: Sequence[ReportRun]) -> list[tuple[str, list[str]]]:
    """Return what the trainings measured of their own speed, run by run."""
    return [
        ("steps", [f"{run.metrics[-1]['step']:,}" if run.metrics else MISSING for run in runs]),
        ("seconds", [_seconds(run.seconds) for run in runs]),
        ("items per second", [_mean(run, "images_per_second", "{:,.0f}") for run in runs]),
        ("share of time waiting for data", [_mean(run, "data_wait", "{:.1%}") for run in runs]),
    ]


def _group(data: str, runs: list[ReportRun], measures: Sequence[Metric]) -> DatasetTable:
    """Return the encoders of one data set: the baselines first, each once, then the runs."""
    lines = [*_baselines(runs), *(_Line(run.name, run, "trained") for run in runs)]
    best = {measure.key: _best(measure, lines) for measure in measures}
    encoders = [
        EncoderRow(
            line.name,
            line.run if line.row == "trained" else None,
            [_cell(measure, line, best[measure.key]) for measure in measures],
            _seconds(line.run.seconds) if line.row == "trained" else MISSING,
        )
        for line in lines
    ]
    return DatasetTable(data, _sizes(data, runs), encoders)


class _Line(NamedTuple):
    """What a row shows: of a run its trained encoder, or one of its baselines."""

    name: str
    run: ReportRun
    row: str

    @property
    def values(self) -> dict[str, Any]:
        return dict(self.run.evaluation["rows"].get(self.row, {})) if self.run.evaluation else {}

    def interval(self, key: str) -> tuple[float, float] | None:
        """The ends of the interval of a measure, where it has one."""
        found = (self.run.evaluation or {}).get("intervals", {}).get(self.row, {}).get(key)
        return None if found is None else (found["low"], found["high"])

    def is_like(self, other: _Line) -> bool:
        """Whether what was measured of both is the same."""
        shared = self.values.keys() & other.values.keys()
        return len(shared) > 0 and all(self.values[key] == other.values[key] for key in shared)

    def surely_differs(self, other: _Line, key: str) -> bool:
        """Whether the two were measured on the same items, and the interval of their difference leaves zero out."""
        if self.row == other.row == "trained":
            found = self.run.difference(other.run, key)
        elif self.row == "trained":
            found = self.run.difference(other.row, key) if other.run is self.run else None
            found = found or self._against_alike(other, key)
        elif other.row == "trained":
            return other.surely_differs(self, key)
        else:
            found = None
        return found is not None and found.is_significant

    def _against_alike(self, baseline: _Line, key: str) -> Difference | None:
        """Return the difference from another run's baseline that has the same numbers as this run's own."""
        own = _Line("", self.run, baseline.row)
        return self.run.difference(baseline.row, key) if own.is_like(baseline) else None


def _baselines(runs: list[ReportRun]) -> list[_Line]:
    """Return the baselines that differ; where two have one name, it says for which run each is."""
    found: list[_Line] = []
    for key in ("raw", *BEFORE):
        for run in runs:
            names = {"raw": "raw inputs", "given": f"{run.encoder} as given", "untrained": f"untrained {run.encoder}"}
            line = _Line(names[key], run, key)
            alike = next((k for k, other in enumerate(found) if other.row == key and other.is_like(line)), None)
            if alike is None and line.values:
                found.append(line)
            elif alike is not None and len(line.values) > len(found[alike].values):
                found[alike] = line  # the same, of which more was measured
    repeated = Counter(line.name for line in found)
    return [
        line if repeated[line.name] == 1 else line._replace(name=f"{line.name} (for {line.run.name})") for line in found
    ]


def _sizes(data: str, runs: Iterable[ReportRun]) -> str:
    """Say how many items the runs learned and were judged by, and of which runs, where these differ."""
    of_size: dict[str, list[str]] = {}
    for run in runs:
        if run.evaluation and "test_items" in run.evaluation:
            train, test, pairs = (run.evaluation[f"{part}_items"] for part in ("train", "test", "uniformity"))
            subset = f" (uniformity: a random {pairs:,} of them)" if pairs < test else ""
            of_size.setdefault(f"{train:,} training and {test:,} test items{subset}", []).append(run.name)
    told = [size if len(of_size) == 1 else f"{size} of {join_names(names)}" for size, names in of_size.items()]
    return f"On {data}: {'; '.join(told)}." if told else ""


def _best(measure: Metric, lines: Sequence[_Line]) -> _Line | None:
    """Return the encoder that is surely the best: every run was measured, and no other's difference may be none."""
    known = [line for line in lines if line.values.get(measure.key) is not None]
    runs = [line for line in lines if line.row == "trained"]
    if len(known) < 2 or measure.better == "neither" or not all(line in known for line in runs):
        return None
    top = (max if measure.better == "higher" else min)(known, key=lambda line: float(line.values[measure.key]))
    sure = all(top.surely_differs(line, measure.key) for line in known if line is not top)
    return top if sure else None


def _cell(measure: Metric, line: _Line, best: _Line | None) -> Number:
    """Write a value with its interval."""
    value, ends = line.values.get(measure.key), line.interval(measure.key)
    if value is None or not math.isfinite(value):
        return Number(MISSING, False)
    between = "" if ends is None else format_interval(measure, *ends)
    return Number(measure.format(value).replace("-", "−"), line is best, between)


def format_interval(measure: Metric, low: float, high: float) -> str:
    """Write an interval in as few letters as can be: its unit once, and a dash where no end has one.

    >>> from contraport.metrics import metric_by_key
    >>> format_interval(metric_by_key("knn"), 0.842, 0.861), format_interval(metric_by_key("uniformity"), -2.0, -1.5)
    ('84.2–86.1%', '−2.000 to −1.500')
    """
    ends = [measure.format(end).replace("-", "−") for end in (low, high)]
    if min(low, high) < 0:
        return " to ".join(ends)
    return "–".join([ends[0].removesuffix("%"), ends[1]])


def _seconds(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _mean(run: ReportRun, key: str, pattern: str) -> str:
    values = [row[key] for row in run.metrics if row.get(key) is not None]
    return pattern.format(sum(values) / len(values)) if values else MISSING


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or MISSING
    return MISSING if value is None else str(value)
