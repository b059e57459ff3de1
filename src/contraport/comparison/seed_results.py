"""What was found: the entries of the table, and the verdicts on claims, from what each training's judging said."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from contraport.comparison.grid import Claim, Column, Grid, Row
from contraport.comparison.jobs import CellJob, Found
from contraport.comparison.seed_statistics import (
    PairedDifference,
    VarianceEstimate,
    estimate_variance,
    paired,
    seed_interval,
    seeds_to_decide,
    variance_prior,
)
from contraport.metrics import Metric, select_metrics
from contraport.metrics.intervals import Difference, Interval
from contraport.runs import Run

HELD, PARTLY, NOT_HELD, UNDECIDED = "held", "held in part", "did not hold", "not decided at this size"

SMALL = 0.01
"""A share of test items less than which is nothing to choose an objective by."""


class Seen(NamedTuple):
    """What was found of a cell of the table, by one measure.

    Attributes:
        seeds: which seeds it was trained with.
        values: the number with each, ``(s,)``.
        items: what it is the mean of, ``(s, n)``, where it is one of test items.
    """

    seeds: tuple[int, ...]
    values: np.ndarray[Any, Any]
    items: np.ndarray[Any, Any] | None


class Entry(NamedTuple):
    """A cell of the table, by one measure.

    Attributes:
        row: the name of the row.
        column: the data and the setting.
        measure: what was measured.
        seeds: how many it was trained with; fewer than were asked for where trainings lack or failed.
        mean: over these.
        interval: of the mean; none where nothing tells how sure that is, as of one seed by a measure without items.
        difference: from the baseline, with an interval that holds for all comparisons of the table at once.
        seconds: of training, the mean.
        failed: why it has fewer seeds, if one failed.
    """

    row: str
    column: str
    measure: str
    seeds: int
    mean: float | None
    interval: Interval | None
    difference: Difference | None
    seconds: float | None
    failed: str | None


class EpochMean(NamedTuple):
    """What a cell of the table had reached at an epoch on its way, by one measure, where `keep_every` kept the model.

    Attributes:
        row: the name of the row.
        column: the data and the setting.
        measure: what was measured.
        epoch: after how many.
        mean: over seeds.
        interval: of the mean; none of one seed.
    """

    row: str
    column: str
    measure: str
    epoch: int
    mean: float
    interval: Interval | None


class Verdict(NamedTuple):
    """What was found of a claim.

    Attributes:
        says: the claim.
        verdict: held, held in part, did not hold, or not decided at this size.
        measure: by which measure.
        found: how much better it is where it should be, by row and column.
        seeds: of one that is not decided, how many of each would decide it, if the differences stayed as they are; see
            `seeds_to_decide`.
    """

    says: str
    verdict: str
    measure: str
    found: dict[str, Difference]
    seeds: int | None = None


def metrics_in_order(names: Sequence[str]) -> list[Metric]:
    """Return measures in the order in which they are named."""
    return [measure for name in dict.fromkeys(names) for measure in select_metrics([name])]


Results = Mapping[tuple[str, str, int], tuple[CellJob, Found]]
"""By row, column and seed, what was to be done and what was found."""


class Known(NamedTuple):
    """All that one measure says of a comparison.

    Attributes:
        seen: what was found, by row and column.
        of_mean: how the values of a row are likely to be spread by the seed.
        of_difference: likewise what they are more than those of the baseline.
    """

    seen: Mapping[tuple[str, str], Seen]
    of_mean: VarianceEstimate | None
    of_difference: VarianceEstimate | None

    def apart(self, name: str, other: str, column: str) -> PairedDifference | None:
        """Return how much larger the mean of a row is than that of another, on the seeds that both have."""
        values, others = _on_same_seeds(self.seen[name, column], self.seen[other, column])
        if not len(values.seeds):
            return None
        alike = values.items is not None and others.items is not None and values.items.shape == others.items.shape
        items = (values.items, others.items) if alike else (None, None)
        return paired(values.values, others.values, *items, likely=self.of_difference)

    def has_seed_variance(self, name: str, other: str, column: str) -> bool:
        """Return whether it is known how much another seed would change the difference of two rows."""
        both, _ = _on_same_seeds(self.seen[name, column], self.seen[other, column])
        return len(both.seeds) > 1 or self.of_difference is not None


def known_of(grid: Grid, results: Results, key: str) -> Known:
    """Return all that one measure says."""
    seen = {
        (row.name, column.name): _seen(grid, results, row, column, key) for row in grid.rows for column in grid.columns
    }
    apart = [
        one.values - other.values
        for column in grid.columns
        for row in grid.rows
        if row.name != grid.baseline
        for one, other in [_on_same_seeds(seen[row.name, column.name], seen[grid.baseline, column.name])]
    ]
    of_means = (estimate_variance(one.values) for one in seen.values())
    of_differences = (estimate_variance(one) for one in apart)
    return Known(seen, variance_prior(filter(None, of_means)), variance_prior(filter(None, of_differences)))


def single_seed_differences(grid: Grid, results: Results) -> list[str]:
    """Return which differences from the baseline, by the first measure, tell nothing of other seeds, as in a table."""
    known = known_of(grid, results, metrics_in_order(grid.asked.metrics)[0].key)
    return [
        f"{row.name} on {column.name}"
        for column in grid.columns
        for row in grid.rows
        if row.name != grid.baseline
        and known.apart(row.name, grid.baseline, column.name) is not None
        and not known.has_seed_variance(row.name, grid.baseline, column.name)
    ]


def _on_same_seeds(one: Seen, other: Seen) -> tuple[Seen, Seen]:
    """Return what was found of two rows with the seeds that both have."""
    both = tuple(seed for seed in one.seeds if seed in other.seeds)

    def some(of: Seen) -> Seen:
        places = [of.seeds.index(seed) for seed in both]
        return Seen(both, of.values[places], None if of.items is None else of.items[places])

    return some(one), some(other)


def build_entries(grid: Grid, results: Results) -> list[Entry]:
    """Return the cells of the table."""
    comparisons = max(1, (len(grid.rows) - 1) * len(grid.columns))
    return [
        _entry(grid, results, row.name, column.name, measure.key, known, comparisons)
        for measure in metrics_in_order(grid.asked.metrics)
        for known in [known_of(grid, results, measure.key)]
        for column in grid.columns
        for row in grid.rows
    ]


def _entry(grid: Grid, results: Results, row: str, column: str, key: str, known: Known, comparisons: int) -> Entry:
    own = known.seen[row, column]
    apart = None if row == grid.baseline else known.apart(row, grid.baseline, column)
    of_row = [found for (name, where, _), (_, found) in results.items() if (name, where) == (row, column)]
    seconds = [found["seconds"]["training"] for found in of_row if found.get("seconds", {}).get("training")]
    there = len(own.seeds) > 0
    return Entry(
        row=row,
        column=column,
        measure=key,
        seeds=len(own.seeds),
        mean=float(own.values.mean()) if there else None,
        interval=seed_interval(own.values, own.items, likely=known.of_mean) if there else None,
        difference=None if apart is None else apart.difference(comparisons=comparisons),
        seconds=float(np.mean(seconds)) if seconds else None,
        failed=next((found["failed"] for found in of_row if "failed" in found), None),
    )


def epoch_means(grid: Grid, results: Results) -> list[EpochMean]:
    """Return what the cells of the table had reached on their way, and at its end, where anything was kept."""
    told = []
    for measure, column, row in itertools.product(metrics_in_order(grid.asked.metrics), grid.columns, grid.rows):
        by_epoch: dict[int, list[float]] = {}
        for seed in grid.seeds:
            _, found = results.get((row.name, column.name, seed), (None, {}))
            for name, values in found.get("course", {}).items():
                if measure.key in values:
                    by_epoch.setdefault(int(name.split()[-1]), []).append(values[measure.key])
        for epoch, values in sorted(by_epoch.items()):
            known = np.array(values)
            told.append(EpochMean(row.name, column.name, measure.key, epoch, float(known.mean()), seed_interval(known)))
    return told


def _seen(grid: Grid, results: Results, row: Row, column: Column, key: str) -> Seen:
    """Return what one measure says of a cell of the table, seed by seed."""
    good = {
        seed: results[place]
        for seed in grid.seeds
        if (place := (row.name, column.name, seed)) in results and key in results[place][1].get("values", {})
    }
    values = np.array([found["values"][key] for _, found in good.values()])
    items = [Run(job.path).items().get(key) for job, _ in good.values()]
    known = [one.reshape(len(one), -1).mean(axis=1) for one in items if one is not None]
    alike = len(known) == len(items) > 0 and len({len(one) for one in known}) == 1
    return Seen(tuple(good), values, np.stack(known) if alike else None)


def judge_claims(grid: Grid, results: Results) -> list[Verdict]:
    """Return what was found of each claim, by intervals that hold for all comparisons of the claims at once."""
    asked: list[tuple[Claim, Metric, list[tuple[str, Column]]]] = []
    names = [row.name for row in grid.rows]
    for claim in grid.claims:
        measure = select_metrics([claim.measure])[0] if claim.measure else metrics_in_order(grid.asked.metrics)[0]
        columns = [column for column in grid.columns if not claim.settings or column.setting in claim.settings]
        pairs = [(name, column) for column in columns for name in claim.better if name in names and claim.than in names]
        asked.append((claim, measure, pairs))
    comparisons = max(1, sum(len(pairs) for _, _, pairs in asked))
    told = []
    for claim, measure, pairs in asked:
        known = known_of(grid, results, measure.key)
        gains = {
            f"{name} on {column.name}": apart if measure.better != "lower" else -apart
            for name, column in pairs
            if (apart := known.apart(name, claim.than, column.name)) is not None
            and known.has_seed_variance(name, claim.than, column.name)
        }
        found = {name: sure for name, gain in gains.items() if (sure := gain.difference(comparisons=comparisons))}
        judge = partial(judge_claim, each=claim.each, small=SMALL if measure.in_percent else 0.0)
        verdict, seeds = judge(list(found.values())), None
        if verdict == UNDECIDED and found:
            decided = partial(_is_decided, judge)
            seeds = seeds_to_decide(decided, list(gains.values()), comparisons=comparisons)
        told.append(Verdict(claim.says, verdict, measure.key, found, seeds))
    return told


def _is_decided(judge: Callable[[Sequence[Difference]], str], gains: Sequence[Difference]) -> bool:
    return judge(gains) != UNDECIDED


def judge_claim(gains: Sequence[Difference], *, each: bool = False, small: float = SMALL) -> str:
    """Return whether a claim held, by how much better it is where it should be.

    It held where it is surely better somewhere and surely worse nowhere, in part where it is surely worse elsewhere; it
    did not where it is surely worse somewhere and surely better nowhere, or where a gain of a point can be ruled out
    everywhere; else it is not decided. One that says so of each place held where it is surely better in all of them,
    and did not where in one, in which it is not, a gain of a point can be ruled out. What is small is a point of a
    share; of other units, of which a point says nothing, it is none.

    >>> judge_claim([Difference(0.02, 0.01, 0.03), Difference(0.0, -0.02, 0.02)])
    'held'
    >>> judge_claim([Difference(0.02, 0.01, 0.03), Difference(-0.02, -0.03, -0.01)])
    'held in part'
    >>> judge_claim([Difference(0.001, -0.005, 0.007)]), judge_claim([Difference(0.01, -0.03, 0.05)])
    ('did not hold', 'not decided at this size')
    >>> judge_claim([Difference(0.02, 0.01, 0.03), Difference(0.0, -0.02, 0.02)], each=True)
    'not decided at this size'
    """
    if each and gains:
        ruled_out = any(gain.high < small and not gain.low > 0 for gain in gains)
        return NOT_HELD if ruled_out else HELD if all(gain.low > 0 for gain in gains) else UNDECIDED
    better, worse = (sum(test) for test in ([g.low > 0 for g in gains], [g.high < 0 for g in gains]))
    if better:
        return PARTLY if worse else HELD
    if gains and (worse or all(gain.high < small for gain in gains)):
        return NOT_HELD
    return UNDECIDED
