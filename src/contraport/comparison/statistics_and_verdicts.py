"""Statistics of a comparison over seeds, and verdicts on its claims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from contraport.comparison.grid import Claim, Column, Grid, Row
from contraport.comparison.jobs import CellJob, JobResult
from contraport.comparison.seed_intervals import (
    DifferenceAndVariances,
    VarianceEstimate,
    estimate_moderated_variance,
    estimate_paired_difference,
    estimate_variance_prior,
    mean_interval_over_seeds,
    predict_num_seeds_to_decide,
)
from contraport.metrics import Metric, select_metrics_keeping_order
from contraport.metrics.intervals import Difference, Interval
from contraport.runs import WritableRun

HELD, PARTLY, NOT_HELD, UNDECIDED = "held", "held in part", "did not hold", "not decided at this size"
"""Possible outcomes of testing a claim."""

NEGLIGIBLE_GAIN = 0.01
"""Gain of a metric in percent (0.01: one percentage point) below which the choice of an objective does not matter."""

JobAndResultByRowColumnSeed = Mapping[tuple[str, str, int], tuple[CellJob, JobResult]]
"""Job and result of each training run, by row, column and seed."""


RecordT = TypeVar("RecordT", "TableEntry", "SeedMeanAtEpoch")


class CellValues(NamedTuple):
    """Values of one metric for one objective and data set, by seed.

    Attributes:
        seeds: random seeds whose training has a value of the metric.
        seed_values: metric value for each seed, ``(s,)``.
        item_values: metric values by seed and test item, ``(s, n)``; None if the metric is not a mean over items.
    """

    seeds: tuple[int, ...]
    seed_values: np.ndarray[Any, Any]
    item_values: np.ndarray[Any, Any] | None


class TableEntry(NamedTuple):
    """Statistics of one metric for one row and column of the table.

    Attributes:
        num_seeds: number of seeds with a value; less than requested if training runs are missing or failed.
        mean: mean of the metric over these seeds; None without any.
        interval: confidence interval of the mean; None if the variance cannot be estimated.
        difference: difference from the baseline with its confidence interval (Bonferroni-corrected within the table).
        mean_training_seconds: mean training time in seconds.
        first_failure_reason: reason why the first failed training failed; None if none failed.
        missing_difference_reason: reason why `difference` is None; itself None for the baseline.
        seconds_by_training: time of each training run in seconds; empty in files of earlier versions.
        num_seeds_to_decide: for a difference in the first metric that is neither significant nor negligible, number of
            seeds that would decide, `MAX_PREDICTED_SEEDS` if no smaller number would; None otherwise, or if unknown.
    """

    row_name: str
    column_name: str
    metric_key: str
    num_seeds: int
    mean: float | None
    interval: Interval | None
    difference: Difference | None
    mean_training_seconds: float | None
    first_failure_reason: str | None
    missing_difference_reason: str | None = None
    seconds_by_training: Sequence[float] = ()
    num_seeds_to_decide: int | None = None


class SeedMeanAtEpoch(NamedTuple):
    """Mean of one metric over seeds, at one epoch."""

    row_name: str
    column_name: str
    metric_key: str
    epoch: int
    mean: float
    interval: Interval | None


_RECORD_KEY_BY_FIELD = {
    "row_name": "row",
    "column_name": "column",
    "metric_key": "measure",
    "num_seeds": "seeds",
    "mean_training_seconds": "seconds",
    "first_failure_reason": "failed",
    "missing_difference_reason": "missing_interval_reason",
}
"""Keys in `results.json` by field of `TableEntry` or `SeedMeanAtEpoch`, for fields that have another name there."""


def to_json_record(entry: TableEntry | SeedMeanAtEpoch) -> dict[str, Any]:
    """Convert a table entry, or a mean over seeds at one epoch, to its JSON record."""
    return {
        _RECORD_KEY_BY_FIELD.get(name, name): list(value) if isinstance(value, tuple) else value
        for name, value in entry._asdict().items()
    }


def from_json_record(kind: type[RecordT], record: Mapping[str, Any]) -> RecordT:
    """Convert a JSON record to a `TableEntry` or a `SeedMeanAtEpoch`."""
    keys = {name: _RECORD_KEY_BY_FIELD.get(name, name) for name in kind._fields}
    fields = {name: record[key] for name, key in keys.items() if key in record or name not in kind._field_defaults}
    for name, interval in (("interval", Interval), ("difference", Difference)):
        if fields.get(name) is not None:
            fields[name] = interval(*fields[name])
    return kind(**fields)


class ClaimVerdict(NamedTuple):
    """Verdict on a claim, with the differences that it is based on.

    Attributes:
        outcome: held, held in part, did not hold, or not decided at this size.
        gains: difference in favor of the claim (positive if it supports it), by text such as "iot on digits, plain".
        num_seeds_to_decide: number of seeds that would decide an undecided claim, `MAX_PREDICTED_SEEDS` if no smaller
            number would; None otherwise, or if unknown.
    """

    claim: str
    outcome: str
    metric_key: str
    gains: dict[str, Difference]
    num_seeds_to_decide: int | None = None


class MetricValues(NamedTuple):
    """Values of one metric for all runs of a comparison, with priors of seed variances.

    Attributes:
        cell_values: values of each cell, by row and column.
        value_variance_prior: prior for the variance between seeds of the values of a cell.
        difference_variance_prior: prior for the variance between seeds of a difference from the baseline.
    """

    cell_values: Mapping[tuple[str, str], CellValues]
    value_variance_prior: VarianceEstimate | None
    difference_variance_prior: VarianceEstimate | None

    def estimate_difference(self, row: str, other_row: str, column: str) -> DifferenceAndVariances | None:
        """Estimate the paired difference of two comparison rows, or None without shared seeds."""
        one, two = _restrict_to_shared_seeds(self.cell_values[row, column], self.cell_values[other_row, column])
        if not one.seeds:
            return None
        items, others = one.item_values, two.item_values
        if items is None or others is None or items.shape != others.shape:
            items = others = None
        return estimate_paired_difference(
            one.seed_values, two.seed_values, items, others, prior=self.difference_variance_prior
        )


def _restrict_to_shared_seeds(one: CellValues, other: CellValues) -> tuple[CellValues, CellValues]:
    """Restrict two sets of metric values to the seeds that both have."""
    shared, restricted = tuple(seed for seed in one.seeds if seed in other.seeds), []
    for cell in (one, other):
        positions = [cell.seeds.index(seed) for seed in shared]
        items = None if cell.item_values is None else cell.item_values[positions]
        restricted.append(CellValues(shared, cell.seed_values[positions], items))
    return restricted[0], restricted[1]


def collect_values_and_variance_priors(grid: Grid, results: JobAndResultByRowColumnSeed, key: str) -> MetricValues:
    """Collect the values of one metric, and estimate priors for variances between seeds."""
    cells = {
        (row.name, column.name): _collect_cell_values(grid, results, row, column, key)
        for row in grid.rows
        for column in grid.columns
    }
    pairs = [
        _restrict_to_shared_seeds(cells[row.name, column.name], cells[grid.baseline, column.name])
        for column in grid.columns
        for row in grid.rows
        if row.name != grid.baseline
    ]
    of_means = (estimate_moderated_variance(cell.seed_values) for cell in cells.values())
    of_differences = (estimate_moderated_variance(one.seed_values - other.seed_values) for one, other in pairs)
    return MetricValues(
        cells, estimate_variance_prior(filter(None, of_means)), estimate_variance_prior(filter(None, of_differences))
    )


def _collect_cell_values(
    grid: Grid, results: JobAndResultByRowColumnSeed, row: Row, column: Column, key: str
) -> CellValues:
    """Collect one metric's values over the seeds of a table cell."""
    by_seed = {
        seed: results[place]
        for seed in grid.seeds
        if (place := (row.name, column.name, seed)) in results and key in results[place][1].get("values", {})
    }
    values = np.array([result["values"][key] for _, result in by_seed.values()])
    items = [WritableRun(job.run_folder).test_item_metric_values().get(key) for job, _ in by_seed.values()]
    arrays = [one.reshape(len(one), -1).mean(axis=1) for one in items if one is not None]
    is_complete = len(arrays) == len(items) > 0 and len({len(one) for one in arrays}) == 1
    return CellValues(tuple(by_seed), values, np.stack(arrays) if is_complete else None)


def list_differences_of_unknown_seed_variance(grid: Grid, results: JobAndResultByRowColumnSeed) -> list[str]:
    """List cells whose difference has an unknown seed variance, each as "row on column".

    The list is empty if the table is large enough for a prior of the variance between seeds.
    """
    values = collect_values_and_variance_priors(grid, results, grid.metrics[0].key)
    return [
        f"{row.name} on {column.name}"
        for column in grid.columns
        for row in grid.rows
        if row.name != grid.baseline
        and (difference := values.estimate_difference(row.name, grid.baseline, column.name)) is not None
        and difference.seed_variance is None
    ]


def build_table_entries(grid: Grid, results: JobAndResultByRowColumnSeed) -> list[TableEntry]:
    """Build the entries of the comparison's tables, one for each metric, column and row."""
    comparisons = max(1, (len(grid.rows) - 1) * len(grid.columns))
    entries = []
    for metric in grid.metrics:
        values = collect_values_and_variance_priors(grid, results, metric.key)
        for column, row in itertools.product(grid.columns, grid.rows):
            cell = values.cell_values[row.name, column.name]
            is_baseline = row.name == grid.baseline
            difference = None if is_baseline else values.estimate_difference(row.name, grid.baseline, column.name)
            of_cell = [
                result for (name, where, _), (_, result) in results.items() if (name, where) == (row.name, column.name)
            ]
            seconds = [one["seconds"]["training"] for one in of_cell if one.get("seconds", {}).get("training")]
            has_values = len(cell.seeds) > 0
            entries.append(
                TableEntry(
                    row_name=row.name,
                    column_name=column.name,
                    metric_key=metric.key,
                    num_seeds=len(cell.seeds),
                    mean=float(cell.seed_values.mean()) if has_values else None,
                    interval=mean_interval_over_seeds(
                        cell.seed_values, cell.item_values, prior=values.value_variance_prior
                    )
                    if has_values
                    else None,
                    difference=None if difference is None else difference.with_interval(comparisons=comparisons),
                    mean_training_seconds=float(np.mean(seconds)) if seconds else None,
                    first_failure_reason=next((one["failed"] for one in of_cell if "failed" in one), None),
                    missing_difference_reason=None
                    if is_baseline or not has_values
                    else "it has no seed in common with the baseline"
                    if difference is None
                    else difference.missing_interval_reason,
                    seconds_by_training=tuple(seconds),
                    num_seeds_to_decide=_predict_num_seeds_if_undecided(difference, metric, comparisons=comparisons)
                    if difference is not None and metric == grid.metrics[0]
                    else None,
                )
            )
    return entries


def _predict_num_seeds_if_undecided(difference: DifferenceAndVariances, metric: Metric, comparisons: int) -> int | None:
    """Predict how many seeds would settle a difference, or None if already settled.

    It is settled if it is significant or negligible. None too for a single seed, which allows no prediction.
    """
    negligible = NEGLIGIBLE_GAIN * metric.is_shown_in_percent

    def is_decided(differences: Sequence[Difference]) -> bool:
        return all(one.is_significant or -negligible < one.low <= one.high < negligible for one in differences)

    interval = difference.with_interval(comparisons=comparisons)
    if interval is None or is_decided([interval]) or difference.num_seeds == 1:
        return None
    return predict_num_seeds_to_decide(is_decided, [difference], comparisons=comparisons)


def compute_seed_means_by_epoch(grid: Grid, results: JobAndResultByRowColumnSeed) -> list[SeedMeanAtEpoch]:
    """Compute each metric's mean over seeds at the intermediate and last epochs."""
    means = []
    for metric, column, row in itertools.product(grid.metrics, grid.columns, grid.rows):
        by_epoch: dict[int, list[float]] = {}
        for seed in grid.seeds:
            _, result = results.get((row.name, column.name, seed), (None, {}))
            for name, values in result.get("course", {}).items():
                if metric.key in values:
                    by_epoch.setdefault(int(name.split()[-1]), []).append(values[metric.key])
        for epoch, values in sorted(by_epoch.items()):
            array = np.array(values)
            mean, interval = float(array.mean()), mean_interval_over_seeds(array)
            means.append(SeedMeanAtEpoch(row.name, column.name, metric.key, epoch, mean, interval))
    return means


def judge_claims(grid: Grid, results: JobAndResultByRowColumnSeed) -> list[ClaimVerdict]:
    """Test each claim against the results, with intervals corrected for multiple testing."""
    names = [row.name for row in grid.rows]
    claims: list[tuple[Claim, Metric, list[tuple[str, Column]]]] = []
    for claim in grid.claims:
        metric = select_metrics_keeping_order([claim.metric_key])[0] if claim.metric_key else grid.metrics[0]
        columns = [
            column for column in grid.columns if not claim.setting_names or column.setting_name in claim.setting_names
        ]
        better_rows = [name for name in claim.better_rows if name in names and claim.other_row in names]
        pairs = [(name, column) for column in columns for name in better_rows]
        claims.append((claim, metric, pairs))
    comparisons = max(1, sum(len(pairs) for _, _, pairs in claims))
    verdicts = []
    for claim, metric, pairs in claims:
        values = collect_values_and_variance_priors(grid, results, metric.key)
        gains = {
            f"{name} on {column.name}": difference if metric.better_direction != "lower" else -difference
            for name, column in pairs
            if (difference := values.estimate_difference(name, claim.other_row, column.name)) is not None
            and difference.seed_variance is not None
        }
        differences = {name: gain.with_interval(comparisons=comparisons) for name, gain in gains.items()}
        intervals = {name: difference for name, difference in differences.items() if difference is not None}
        negligible = NEGLIGIBLE_GAIN * metric.is_shown_in_percent
        judge = partial(classify_claim_outcome, requires_all=claim.requires_all, negligible_gain=negligible)
        verdict, seeds = judge(list(intervals.values())), None
        if verdict == UNDECIDED and intervals and all(gain.num_seeds > 1 for gain in gains.values()):
            seeds = predict_num_seeds_to_decide(
                lambda predicted, judge=judge: judge(predicted) != UNDECIDED,  # type: ignore[misc]
                list(gains.values()),
                comparisons=comparisons,
            )
        verdicts.append(ClaimVerdict(claim.statement, verdict, metric.key, intervals, seeds))
    return verdicts


def classify_claim_outcome(
    gains: Sequence[Difference], *, requires_all: bool = False, negligible_gain: float = NEGLIGIBLE_GAIN
) -> str:
    """Classify a claim, for example as "held in part", from paired differences.

    Without `requires_all`, it held if some gain is significantly positive and none significantly negative, and in part
    if some are both. It did not hold if some are significantly negative and none positive, or if all gains are below
    `negligible_gain`. With `requires_all`, it held if all gains are significantly positive, and did not if one that is
    not is below `negligible_gain`. Otherwise it is not decided.

    Args:
        gains: paired differences in favor of the claim.
        requires_all: whether the claim is about all gains rather than about some.
        negligible_gain: gain that is too small to matter: a point of a share; 0 for other units.

    >>> classify_claim_outcome([Difference(0.02, 0.01, 0.03), Difference(0.0, -0.02, 0.02)])
    'held'
    >>> classify_claim_outcome([Difference(0.02, 0.01, 0.03), Difference(-0.02, -0.03, -0.01)])
    'held in part'
    >>> classify_claim_outcome([Difference(0.001, -0.005, 0.007)])
    'did not hold'
    >>> classify_claim_outcome([Difference(0.01, -0.03, 0.05)])
    'not decided at this size'
    >>> classify_claim_outcome([Difference(0.02, 0.01, 0.03), Difference(0.0, -0.02, 0.02)], requires_all=True)
    'not decided at this size'
    """
    if requires_all and gains:
        ruled_out = any(gain.high < negligible_gain and not gain.low > 0 for gain in gains)
        return NOT_HELD if ruled_out else HELD if all(gain.low > 0 for gain in gains) else UNDECIDED
    better, worse = any(gain.low > 0 for gain in gains), any(gain.high < 0 for gain in gains)
    if better:
        return PARTLY if worse else HELD
    if gains and (worse or all(gain.high < negligible_gain for gain in gains)):
        return NOT_HELD
    return UNDECIDED
