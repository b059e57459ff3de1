"""The table: means over seeds, differences from the baseline, a sentence for each column, the verdicts on claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from contraport.comparing.grid import Claim, Column, Grid, Row
from contraport.comparing.running import Found, Job
from contraport.comparing.statistics import VarianceEstimate, likely_spread, over_seeds, paired, spread_of
from contraport.measures import Measure, chosen
from contraport.measures.intervals import Difference, Interval
from contraport.runs import Run

HELD, NOT_HELD, UNDECIDED = "held", "did not hold", "not decided at this size"

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
        interval: of the mean.
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


class Verdict(NamedTuple):
    """What was found of a claim.

    Attributes:
        says: the claim.
        verdict: held, did not hold, or not decided at this size.
        found: the difference behind it, by row and column.
    """

    says: str
    verdict: str
    found: dict[str, Difference]


@dataclass(frozen=True)
class Comparison:
    """What a comparison found.

    Attributes:
        title: what it is about.
        folder: where its files are.
        baseline: the name of the row that the others are compared with.
        rows: the names of the rows.
        columns: the names of the columns: data and setting.
        entries: the cells of the table, by measure.
        verdicts: what was found of claims.
        references: what the untrained encoder and the raw inputs reach, by name, column and measure.
        spaces: of the search: by row the range of each setting.
        trials: of the search: row, column, settings, and the measure on the validation items.
        notes: what else there is to say.
        lacking: how many trainings are still to be done.
    """

    title: str
    folder: Path
    baseline: str
    rows: list[str]
    columns: list[str]
    entries: list[Entry]
    verdicts: list[Verdict] = field(default_factory=list)
    references: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    spaces: dict[str, dict[str, str]] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lacking: int = 0

    @property
    def measures(self) -> list[Measure]:
        """What was measured, the first of which sentences are about."""
        return chosen_in_order([entry.measure for entry in self.entries])

    def entry(self, row: str, column: str, measure: str) -> Entry | None:
        """Return a cell of the table by one measure."""
        place = (row, column, measure)
        return next((one for one in self.entries if (one.row, one.column, one.measure) == place), None)

    def reference(self, name: str, column: str, measure: Measure) -> str:
        """Return what the untrained encoder or the raw inputs reach, as it is written; a dash where it is not known."""
        value = self.references.get(name, {}).get(column, {}).get(measure.key)
        if value is None:
            return "—"
        return f"{100 * value:.1f}" if measure.unit.startswith("share") else f"{value:.3f}"

    @property
    def searched(self) -> list[str]:
        """What was searched of each row, in words."""
        return [
            f"{row}: {', '.join(f'{key} from {span}' for key, span in spans.items()) or 'nothing of its own'}"
            for row, spans in self.spaces.items()
        ]

    @property
    def sentences(self) -> list[str]:
        """What the first measure says of each column."""
        return [_sentence(self, column) for column in self.columns] if self.entries else []

    def markdown(self) -> str:
        """Return all of it in Markdown."""
        parts = [f"# {self.title}", *_tables(self), "\n".join(f"- {told}" for told in self.sentences)]
        parts += [f"{told}" for told in self.notes]
        if self.verdicts:
            rows = [[one.says, one.verdict, in_words(one, self.measures)] for one in self.verdicts]
            parts += ["## Claims", markdown_table(["claim", "verdict", "why"], rows)]
        if self.trials:
            parts += ["## Settings that were tried", *(f"- {told}" for told in self.searched), _trials(self.trials)]
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """Return the table, a line for each cell and measure."""
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerow(
            ("row", "column", "measure", "seeds", "mean", "low", "high", "difference", "from", "to", "seconds")
        )
        for one in self.entries:
            ends, apart = one.interval or (None, None), one.difference or (None, None, None)
            out.writerow((*one[:4], one.mean, *ends, *apart, one.seconds))
        return text.getvalue()

    def plain(self) -> dict[str, Any]:
        """Return what is written as JSON."""
        entries = [
            entry._asdict()
            | {"interval": None if entry.interval is None else list(entry.interval)}
            | {"difference": None if entry.difference is None else list(entry.difference)}
            for entry in self.entries
        ]
        return {
            "title": self.title,
            "baseline": self.baseline,
            "rows": self.rows,
            "columns": self.columns,
            "entries": entries,
            "sentences": self.sentences,
            "verdicts": [
                {"says": one.says, "verdict": one.verdict, "why": in_words(one, self.measures)}
                | {"found": {name: list(apart) for name, apart in one.found.items()}}
                for one in self.verdicts
            ],
            "references": self.references,
            "spaces": self.spaces,
            "trials": self.trials,
            "notes": self.notes,
            "lacking": self.lacking,
        }


def chosen_in_order(names: Sequence[str]) -> list[Measure]:
    """Return measures in the order in which they are named."""
    return [measure for name in dict.fromkeys(names) for measure in chosen([name])]


Results = Mapping[tuple[str, str, int], tuple[Job, Found]]
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

    def difference(self, name: str, other: str, column: str, comparisons: int) -> Difference | None:
        """Return how much larger the mean of a row is than that of another, on the seeds that both have."""
        values, others = _on_same_seeds(self.seen[name, column], self.seen[other, column])
        if not len(values.seeds):
            return None
        alike = values.items is not None and others.items is not None and values.items.shape == others.items.shape
        items = (values.items, others.items) if alike else (None, None)
        return paired(values.values, others.values, *items, likely=self.of_difference, comparisons=comparisons)

    def tells_seeds(self, name: str, other: str, column: str) -> bool:
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
    of_means = (spread_of(one.values) for one in seen.values())
    of_differences = (spread_of(one) for one in apart)
    return Known(seen, likely_spread(filter(None, of_means)), likely_spread(filter(None, of_differences)))


def _on_same_seeds(one: Seen, other: Seen) -> tuple[Seen, Seen]:
    """Return what was found of two rows with the seeds that both have."""
    both = tuple(seed for seed in one.seeds if seed in other.seeds)

    def some(of: Seen) -> Seen:
        places = [of.seeds.index(seed) for seed in both]
        return Seen(both, of.values[places], None if of.items is None else of.items[places])

    return some(one), some(other)


def entries_of(grid: Grid, results: Results) -> list[Entry]:
    """Return the cells of the table."""
    comparisons = max(1, (len(grid.rows) - 1) * len(grid.columns))
    return [
        _entry(grid, results, row.name, column.name, measure.key, known, comparisons)
        for measure in chosen_in_order(grid.asked.measures)
        for known in [known_of(grid, results, measure.key)]
        for column in grid.columns
        for row in grid.rows
    ]


def _entry(grid: Grid, results: Results, row: str, column: str, key: str, known: Known, comparisons: int) -> Entry:
    own = known.seen[row, column]
    of_row = [found for (name, where, _), (_, found) in results.items() if (name, where) == (row, column)]
    seconds = [found["seconds"]["training"] for found in of_row if found.get("seconds", {}).get("training")]
    there = len(own.seeds) > 0
    return Entry(
        row=row,
        column=column,
        measure=key,
        seeds=len(own.seeds),
        mean=float(own.values.mean()) if there else None,
        interval=over_seeds(own.values, own.items, likely=known.of_mean) if there else None,
        difference=None if row == grid.baseline else known.difference(row, grid.baseline, column, comparisons),
        seconds=float(np.mean(seconds)) if seconds else None,
        failed=next((found["failed"] for found in of_row if "failed" in found), None),
    )


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


def verdicts_of(grid: Grid, results: Results) -> list[Verdict]:
    """Return what was found of each claim, by intervals that hold for all comparisons of the claims at once."""
    asked: list[tuple[Claim, Measure, list[tuple[str, Column]]]] = []
    names = [row.name for row in grid.rows]
    for claim in grid.claims:
        measure = chosen([claim.measure])[0] if claim.measure else chosen_in_order(grid.asked.measures)[0]
        columns = [column for column in grid.columns if not claim.settings or column.setting in claim.settings]
        pairs = [(name, column) for column in columns for name in claim.better if name in names and claim.than in names]
        asked.append((claim, measure, pairs))
    comparisons = max(1, sum(len(pairs) for _, _, pairs in asked))
    told = []
    for claim, measure, pairs in asked:
        found = {}
        known = known_of(grid, results, measure.key)
        for name, column in pairs:
            apart = known.difference(name, claim.than, column.name, comparisons)
            if apart is not None and known.tells_seeds(name, claim.than, column.name):
                gain = apart if measure.better != "lower" else Difference(-apart.value, -apart.high, -apart.low)
                found[f"{name} on {column.name}"] = gain
        told.append(Verdict(claim.says, verdict_of(list(found.values())), found))
    return told


def verdict_of(gains: Sequence[Difference]) -> str:
    """Return whether a claim held, by how much better it is where it should be.

    It held where it is surely better somewhere and surely worse nowhere; it did not where it is surely worse somewhere
    and surely better nowhere, or where a gain of a point can be ruled out everywhere; else it is not decided.

    >>> verdict_of([Difference(0.02, 0.01, 0.03), Difference(0.0, -0.02, 0.02)])
    'held'
    >>> verdict_of([Difference(0.001, -0.005, 0.007)]), verdict_of([Difference(0.01, -0.03, 0.05)])
    ('did not hold', 'not decided at this size')
    """
    better, worse = (sum(test) for test in ([g.low > 0 for g in gains], [g.high < 0 for g in gains]))
    if better and not worse:
        return HELD
    if gains and not better and (worse or all(gain.high < SMALL for gain in gains)):
        return NOT_HELD
    return UNDECIDED


def in_words(verdict: Verdict, measures: Sequence[Measure]) -> str:
    """Return what a verdict rests on, in a sentence."""
    if not verdict.found:
        return "Not measured, or with one seed alone."
    better = sum(gain.low > 0 for gain in verdict.found.values())
    worse = sum(gain.high < 0 for gain in verdict.found.values())
    largest = max(verdict.found, key=lambda name: abs(verdict.found[name].value))
    measure = measures[0]
    return (
        f"Of {len(verdict.found)} comparisons {better} surely better and {worse} surely worse; the largest difference, "
        f"{largest}: {size(measure, verdict.found[largest])}."
    )


def size(measure: Measure, found: Difference) -> str:
    """Write a difference with its interval, in points where the measure is a share.

    >>> size(chosen(["knn"])[0], Difference(0.012, 0.003, 0.021))
    '+1.2 points (+0.3 to +2.1)'
    """
    share = measure.unit.startswith("share")
    scale, digits, unit = (100, 1, " points") if share else (1, 3, "")
    value, low, high = (f"{round(scale * number, digits) + 0.0:+.{digits}f}".replace("-", "−") for number in found)
    return f"{value}{unit} ({low} to {high})"


def written(measure: Measure, entry: Entry | None) -> str:
    """Write a mean over seeds with half the width of its interval; in per cent where the measure is a share."""
    if entry is None or entry.mean is None or entry.interval is None:
        return "failed" if entry is not None and entry.failed else "—"
    half = (entry.interval.high - entry.interval.low) / 2
    share = measure.unit.startswith("share")
    return f"{100 * entry.mean:.1f} ± {100 * half:.1f}" if share else f"{entry.mean:.3f} ± {half:.3f}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def table_of(of: Comparison, measure: Measure) -> str:
    """Return the table of means in Markdown, with what is surely apart from the baseline marked."""
    rows = []
    for row in of.rows:
        cells = []
        for column in of.columns:
            entry = of.entry(row, column, measure.key)
            apart = None if entry is None else entry.difference
            mark = "" if apart is None or not apart.is_sure else " ▲" if apart.value > 0 else " ▼"
            cells.append(written(measure, entry) + mark)
        rows.append([row, *cells])
    rows += [[f"*{name}*", *(of.reference(name, column, measure) for column in of.columns)] for name in of.references]
    return markdown_table(["objective", *of.columns], rows)


def _tables(of: Comparison) -> list[str]:
    """Return the table of each measure, and the differences by the first."""
    told = []
    for measure in of.measures:
        unit = "%" if measure.unit.startswith("share") else measure.unit
        mean = f"{measure.title}, {unit}: mean over seeds ± half of its 95 % interval"
        told += [f"{mean}; ▲ ▼: surely above or below {of.baseline}", table_of(of, measure)]
    if of.measures:
        measure = of.measures[0]
        others = [row for row in of.rows if row != of.baseline]
        rows = [[row, *(_apart(of, row, column, measure) for column in of.columns)] for row in others]
        if rows:
            told.append(
                f"{measure.title}: difference from {of.baseline} on the same seeds and items, with an interval "
                "of 95 % for all comparisons of the table at once"
            )
            told.append(markdown_table(["objective", *of.columns], rows))
    return told


def _apart(of: Comparison, row: str, column: str, measure: Measure) -> str:
    entry = of.entry(row, column, measure.key)
    return "—" if entry is None or entry.difference is None else size(measure, entry.difference)


def _sentence(of: Comparison, column: str) -> str:
    measure = of.measures[0]
    found = [one for one in of.entries if (one.column, one.measure) == (column, measure.key) and one.mean is not None]
    if not found:
        return f"{column}: nothing was measured."
    higher = measure.better != "lower"
    best = max(found, key=lambda one: (one.mean or 0.0) if higher else -(one.mean or 0.0))
    apart = {one.row: one.difference for one in found if one.difference is not None}
    above = [name for name, one in apart.items() if (one.low > 0 if higher else one.high < 0)]
    below = [name for name, one in apart.items() if (one.high < 0 if higher else one.low > 0)]
    parts = [f"{_several(above, best.row)} surely better than {of.baseline}"] if above else []
    parts += [f"{_several(below)} surely worse"] if below else []
    rest = len(apart) - len(above) - len(below)
    if rest:
        which = f"the other {rest}" if parts else f"none of the other {rest}"
        parts.append(
            f"{which} cannot be told from {'it' if parts else of.baseline}"
            if parts
            else f"{which} can be told from {of.baseline}"
        )
    lead = f"{column}: {best.row} has the best {_name(measure)}, {written(measure, best)}"
    return f"{lead}; {'; '.join(parts)}." if parts else f"{lead}."


def _several(names: Sequence[str], first: str = "") -> str:
    ordered = sorted(names, key=lambda name: name != first)
    shown = ordered if len(ordered) <= 4 else [*ordered[:3], f"{len(ordered) - 3} others"]
    listed = shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"
    return f"{listed} {'is' if len(ordered) == 1 else 'are'}"


def _name(measure: Measure) -> str:
    title = measure.title
    return f"{title[0].lower()}{title[1:]}" if title[1:2].islower() and title != "kNN" else title


def _trials(trials: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["row"], one["column"], str(one["trial"]), one["settings"], one["value"], "chosen" if one["chosen"] else ""]
        for one in trials
    ]
    return markdown_table(["objective", "on", "trial", "settings", "on validation items", ""], rows)
