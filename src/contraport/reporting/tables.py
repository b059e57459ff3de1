"""The tables of the page: what was measured, with which settings, at what speed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from contraport.reporting.shown import Shown
from contraport.results import MEASURES, Measure

MISSING = "–"


class Cell(NamedTuple):
    """A value of the table as it is written, and whether it is the best of its column."""

    text: str
    best: bool


class TableRow(NamedTuple):
    """A row of the table: a run, or a baseline, which has no run."""

    name: str
    run: Shown | None
    cells: list[Cell]
    seconds: str


class Group(NamedTuple):
    """The rows that were measured on the same data, and a sentence about how much of it."""

    data: str
    sizes: str
    rows: list[TableRow]


def table(runs: Sequence[Shown]) -> list[Group]:
    """Return the measured values, data set by data set."""
    return [_group(data, [run for run in runs if run.data == data]) for data in dict.fromkeys(run.data for run in runs)]


def settings(runs: Sequence[Shown]) -> list[tuple[str, list[str], bool]]:
    """Return every setting with its value in each run, and whether the runs differ in it."""
    rows = {key: [_written(run.config.get(key)) for run in runs] for run in runs for key in run.config}
    return [(key, values, len(set(values)) > 1) for key, values in rows.items()]


def speeds(runs: Sequence[Shown]) -> list[tuple[str, list[str]]]:
    """Return what the trainings measured of their own speed, run by run."""
    return [
        ("steps", [f"{run.metrics[-1]['step']:,}" if run.metrics else MISSING for run in runs]),
        ("seconds", [_seconds(run.seconds) for run in runs]),
        ("items per second", [_mean(run, "images_per_second", "{:,.0f}") for run in runs]),
        ("share of time waiting for data", [_mean(run, "data_wait", "{:.1%}") for run in runs]),
    ]


def _group(data: str, runs: list[Shown]) -> Group:
    """Return the rows of one data set: the baselines first, each once, then the runs."""
    measured = [*_baselines(runs), *((run.name, run, _values(run, "trained")) for run in runs)]
    best = {measure: _best(measure, [values for _, _, values in measured]) for measure in MEASURES}
    rows = [
        TableRow(
            name,
            run,
            [_cell(measure, values.get(measure.key), best[measure]) for measure in MEASURES],
            _seconds(run.seconds) if run else MISSING,
        )
        for name, run, values in measured
    ]
    return Group(data, _sizes(data, runs), rows)


def _baselines(runs: list[Shown]) -> list[tuple[str, Shown | None, dict[str, Any]]]:
    """Return the baselines that differ; where two have one name, it says for which run each is."""
    found: list[tuple[str, Shown, dict[str, Any]]] = []
    for key in ("raw", "untrained"):
        for run in runs:
            values = _values(run, key)
            if values and all(values != others for _, _, others in found):
                found.append(("raw inputs" if key == "raw" else f"untrained {run.encoder}", run, values))
    repeated = Counter(name for name, _, _ in found)
    return [(name if repeated[name] == 1 else f"{name} (for {run.name})", None, values) for name, run, values in found]


def _values(run: Shown, row: str) -> dict[str, Any]:
    return dict(run.evaluation["rows"].get(row, {})) if run.evaluation else {}


def _sizes(data: str, runs: Iterable[Shown]) -> str:
    for run in runs:
        if run.evaluation and "test_items" in run.evaluation:
            train, test, pairs = (run.evaluation[f"{part}_items"] for part in ("train", "test", "uniformity"))
            subset = f" (uniformity: a random {pairs:,} of them)" if pairs < test else ""
            return f"On {data}: {train:,} training and {test:,} test items{subset}."
    return ""


def _best(measure: Measure, rows: Iterable[dict[str, Any]]) -> float | None:
    values = [row[measure.key] for row in rows if row.get(measure.key) is not None]
    if len(values) < 2 or not measure.better:
        return None
    return float(max(values) if measure.better == "higher" else min(values))


def _cell(measure: Measure, value: float | None, best: float | None) -> Cell:
    """Write a value; what is written like the best is marked as the best."""
    if value is None or not math.isfinite(value):
        return Cell(MISSING, False)
    text = measure.pattern.format(value)
    return Cell(text.replace("-", "−"), best is not None and text == measure.pattern.format(best))


def _seconds(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def _mean(run: Shown, key: str, pattern: str) -> str:
    values = [row[key] for row in run.metrics if row.get(key) is not None]
    return pattern.format(sum(values) / len(values)) if values else MISSING


def _written(value: object) -> str:
    return MISSING if value is None else str(value)
