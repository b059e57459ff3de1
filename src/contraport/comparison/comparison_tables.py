"""What was found, as it is told: Markdown, CSV, JSON, and a sentence for each column and claim."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from contraport._utils.files import format_csv
from contraport._utils.formatting import join_names
from contraport.comparison.seed_results import Entry, EpochMean, Verdict, metrics_in_order
from contraport.comparison.seed_statistics import MAX_SEEDS
from contraport.metrics import Metric
from contraport.metrics.intervals import Difference


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
        waypoints: what was reached on the way, where `keep_every` kept models.
        references: what the encoder before training and the raw inputs reach, by name, column and measure.
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
    waypoints: list[EpochMean] = field(default_factory=list)
    references: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    spaces: dict[str, dict[str, str]] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lacking: int = 0

    @property
    def measures(self) -> list[Metric]:
        """What was measured, the first of which sentences are about."""
        return metrics_in_order([entry.measure for entry in self.entries])

    @property
    def heads(self) -> list[str]:
        """What heads a table: over the rows, and over each column; data that all columns are of are told once."""
        data = {column.partition(", ")[0] for column in self.columns}
        if len(self.columns) == 1 or len(data) > 1:
            return ["objective", *self.columns]
        return [f"on {data.pop()}", *(column.partition(", ")[2] for column in self.columns)]

    def entry(self, row: str, column: str, measure: str) -> Entry | None:
        """Return a cell of the table by one measure."""
        place = (row, column, measure)
        return next((one for one in self.entries if (one.row, one.column, one.measure) == place), None)

    def cells(self, row: str, measure: Metric) -> Iterator[tuple[Entry | None, Difference | None]]:
        """Yield the cells of a row by one measure, and how far each is from the baseline's."""
        for column in self.columns:
            entry = self.entry(row, column, measure.key)
            yield entry, None if entry is None else entry.difference

    def best(self, column: str, measure: Metric) -> set[str]:
        """Return the rows with the best mean of a column; none where no direction is better, or one row is alone."""
        means = {one.row: one.mean for one in self.entries if (one.column, one.measure) == (column, measure.key)}
        known = [mean for mean in means.values() if mean is not None]
        if measure.better == "neither" or len(known) < 2:
            return set()
        best = min(known) if measure.better == "lower" else max(known)
        return {row for row, mean in means.items() if mean == best}

    def reference(self, name: str, column: str, measure: Metric) -> str:
        """Return what the encoder before training or the raw inputs reach, as written; a dash where it is not known."""
        value = self.references.get(name, {}).get(column, {}).get(measure.key)
        if value is None:
            return "—"
        return _bare(measure, value)

    def searched_of(self, row: str) -> str:
        """Say what was searched of a row."""
        spans = self.spaces.get(row, {})
        return ", ".join(f"{key} from {span}" for key, span in spans.items()) or "nothing of its own"

    @property
    def searched(self) -> list[str]:
        """What was searched of each row, in words."""
        return [f"{row}: {self.searched_of(row)}" for row in self.spaces]

    @property
    def sentences(self) -> list[str]:
        """What the first measure says of each column."""
        return [_sentence(self, column) for column in self.columns] if self.entries else []

    def markdown(self) -> str:
        """Return all of it in Markdown."""
        parts = [f"# {self.title}", *_tables(self), "\n".join(f"- {told}" for told in self.sentences)]
        parts += [part for measure in self.measures for part in epoch_tables_markdown(self, measure)]
        parts += [f"{told}" for told in self.notes]
        if self.verdicts:
            rows = [[one.says, one.verdict, explain_verdict(one)] for one in self.verdicts]
            parts += ["## Claims", markdown_table(["claim", "verdict", "why"], rows, words=True)]
        if self.trials:
            parts += ["## Settings that were tried", *(f"- {told}" for told in self.searched), _trials(self.trials)]
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """Return the table, a line for each cell and measure."""
        heading = ("row", "column", "measure", "seeds", "mean", "low", "high", "difference", "from", "to", "seconds")
        none, nowhere = (None, None), (None, None, None)
        rows = (
            (*one[:4], one.mean, *(one.interval or none), *(one.difference or nowhere), one.seconds)
            for one in self.entries
        )
        return format_csv(heading, rows)

    def to_json_value(self) -> dict[str, Any]:
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
                {"says": one.says, "verdict": one.verdict, "measure": one.measure, "why": explain_verdict(one)}
                | {"seeds": one.seeds, "found": {name: list(apart) for name, apart in one.found.items()}}
                for one in self.verdicts
            ],
            "waypoints": [
                one._asdict() | {"interval": None if one.interval is None else list(one.interval)}
                for one in self.waypoints
            ],
            "references": self.references,
            "spaces": self.spaces,
            "trials": self.trials,
            "notes": self.notes,
            "lacking": self.lacking,
        }


_NAMED = 4
"""Of at most so many comparisons it is said which they are."""


def explain_verdict(verdict: Verdict) -> str:
    """Return what a verdict rests on, in a sentence."""
    if not verdict.found:
        return "Not measured, or with one seed alone."
    better = [name for name, gain in verdict.found.items() if gain.low > 0]
    worse = [name for name, gain in verdict.found.items() if gain.high < 0]
    largest = max(verdict.found, key=lambda name: abs(verdict.found[name].value))
    (measure,) = metrics_in_order([verdict.measure])
    counts = [_counted(better, "better", largest), _counted(worse, "worse", largest)]
    counted = f"Of {len(verdict.found)} comparisons {' and '.join(counts)}; the largest"
    lead = counted if len(verdict.found) > 1 else "The"
    told = f"{lead} difference, {largest}: {size(measure, verdict.found[largest])}."
    return told if verdict.seeds is None else f"{told} {_more_seeds(verdict.seeds)}"


def _counted(names: Sequence[str], what: str, largest: str) -> str:
    """Return how many comparisons are surely so, and which, unless it is the one that is told of anyhow."""
    listed = f" ({'; '.join(names)})" if 0 < len(names) <= _NAMED and list(names) != [largest] else ""
    return f"{len(names)} surely {what}{listed}"


def _more_seeds(seeds: int) -> str:
    if seeds == MAX_SEEDS:
        return "More seeds alone would not decide it, if the differences stayed so; it takes more test items."
    return f"About {seeds} seeds would decide it, if the differences stayed so."


def size(measure: Metric, found: Difference) -> str:
    """Write a difference with its interval, in points where the measure is a share.

    >>> size(metrics_in_order(["knn"])[0], Difference(0.012, 0.003, 0.021))
    '+1.2 points (+0.3 to +2.1)'
    """
    signed = replace(measure, pattern=measure.pattern.replace("{:", "{:+", 1))
    value, low, high = (_bare(signed, number).replace("-", "−") for number in found)
    return f"{value}{' points' if measure.in_percent else ''} ({low} to {high})"


def _bare(measure: Metric, value: float) -> str:
    """Write a value without the sign of per cent, which stands where the measure is named."""
    return measure.format(value).removesuffix("%")


def written(measure: Metric, entry: Entry | EpochMean | None) -> str:
    """Write a mean over seeds with half the width of its interval, where it has one."""
    if entry is None or entry.mean is None:
        return "failed" if isinstance(entry, Entry) and entry.failed else "—"
    if entry.interval is None:
        return _bare(measure, entry.mean)
    return f"{_bare(measure, entry.mean)} ± {_bare(measure, (entry.interval.high - entry.interval.low) / 2)}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: bool = False) -> str:
    """Return a table in Markdown, with numbers, or words, behind its first column."""
    lines = [head, ["---", *["---" if words else "---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def arrow(apart: Difference | None) -> str:
    """Return the mark of a significant difference from the baseline, above or below."""
    return "" if apart is None or not apart.is_significant else " ▲" if apart.value > 0 else " ▼"


def table_of(of: Comparison, measure: Metric) -> str:
    """Return the table of means in Markdown, with what is surely apart from the baseline marked."""
    rows = []
    for row in of.rows:
        cells = []
        for entry, apart in of.cells(row, measure):
            cells.append(written(measure, entry) + arrow(apart))
        rows.append([row, *cells])
    rows += [[f"*{name}*", *(of.reference(name, column, measure) for column in of.columns)] for name in of.references]
    return markdown_table(of.heads, rows)


class EpochTable(NamedTuple):
    """What the rows of a column had reached after how many epochs, as it is written.

    Attributes:
        column: the data and the setting.
        epochs: after how many.
        rows: by name, what was reached after each.
    """

    column: str
    epochs: list[int]
    rows: dict[str, list[str]]


def epoch_tables(of: Comparison, measure: Metric) -> list[EpochTable]:
    """Return what was reached on the way by one measure, for each column in which models were kept."""
    ways = []
    for column in of.columns:
        here = {(one.row, one.epoch): one for one in of.waypoints if (one.column, one.measure) == (column, measure.key)}
        epochs = sorted({epoch for _, epoch in here})
        if epochs:
            rows = {row: [written(measure, here.get((row, epoch))) for epoch in epochs] for row in of.rows}
            ways.append(EpochTable(column, epochs, rows))
    return ways


def epoch_tables_markdown(of: Comparison, measure: Metric) -> list[str]:
    """Return what was reached on the way, in Markdown: what each table is about, and the table."""
    parts = []
    for way in epoch_tables(of, measure):
        parts.append(f"{measure.title} on the way, {way.column}: of each run after so many epochs")
        rows = [[row, *reached] for row, reached in way.rows.items()]
        parts.append(markdown_table(["objective", *map(str, way.epochs)], rows))
    return parts


def _tables(of: Comparison) -> list[str]:
    """Return the table of each measure, and the differences by the first."""
    told = []
    for measure in of.measures:
        unit = "%" if measure.in_percent else measure.unit
        better = "" if measure.better == "neither" else f" ({measure.better} is better)"
        mean = f"{measure.title}, {unit}{better}: mean over seeds ± half of its 95 % interval"
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
            told.append(markdown_table(of.heads, rows))
    return told


def _apart(of: Comparison, row: str, column: str, measure: Metric) -> str:
    entry = of.entry(row, column, measure.key)
    return "—" if entry is None or entry.difference is None else size(measure, entry.difference)


def _sentence(of: Comparison, column: str) -> str:
    measure = of.measures[0]
    cells = [one for one in of.entries if (one.column, one.measure) == (column, measure.key)]
    found = [one for one in cells if one.mean is not None]
    failed = [one.row for one in cells if one.mean is None and one.failed]
    parts = [_lead(of, measure, found), *(_beside_baseline(of, measure, found) if found else [])]
    parts += [f"{_shortened(failed)} failed"] if failed else []
    parts += _without_training(of, column, measure, found)
    return f"{column}: {'; '.join(parts)}."


def _lead(of: Comparison, measure: Metric, found: Sequence[Entry]) -> str:
    if not found:
        return "nothing was measured"
    best, unit = _first(measure, found), "%" if measure.in_percent else ""
    if len(of.rows) == 1:
        return f"{best.row} has {written(measure, best)}{unit} on {_name(measure)}"
    most = "highest" if measure.better == "neither" else "best"
    return f"{best.row} has the {most} {_name(measure)}, {written(measure, best)}{unit}"


def _without_training(of: Comparison, column: str, measure: Metric, found: Sequence[Entry]) -> list[str]:
    """Return what the encoder before training and the raw inputs reach where that is no less than the best row."""
    if measure.better == "neither" or not found:
        return []
    best, sign = _first(measure, found).mean or 0.0, -1 if measure.better == "lower" else 1
    values = {name: by_column.get(column, {}).get(measure.key) for name, by_column in of.references.items()}
    unit = "%" if measure.in_percent else ""
    told = [
        f"{name} {of.reference(name, column, measure)}{unit}"
        for name, value in values.items()
        if value is not None and sign * value >= sign * best
    ]
    return [f"as good or better without training: {join_names(told)}"] if told else []


def _first(measure: Metric, found: Sequence[Entry]) -> Entry:
    """Return what is the best, or the highest where neither direction is better."""
    sign = -1 if measure.better == "lower" else 1
    return max(found, key=lambda one: sign * (one.mean or 0.0))


def _beside_baseline(of: Comparison, measure: Metric, found: Sequence[Entry]) -> list[str]:
    """Return what is surely better and worse than the baseline, or above and below, and of what that is not known."""
    more, less = ("above", "below") if measure.better == "neither" else ("better than", "worse")
    apart = {one.row: one.difference for one in found if one.difference is not None}
    above = [name for name, one in apart.items() if one.low > 0]
    below = [name for name, one in apart.items() if one.high < 0]
    if measure.better == "lower":
        above, below = below, above
    parts = [f"{_several(above, _first(measure, found).row)} surely {more} {of.baseline}"] if above else []
    parts += [f"{_several(below)} surely {less}"] if below else []
    rest = [name for name in apart if name not in above and name not in below]
    if len(rest) == 1:
        parts.append(f"{rest[0]} cannot be told from {of.baseline}")
    elif rest and parts:
        parts.append(f"the other {len(rest)} cannot be told from it")
    elif rest:
        parts.append(f"none of the other {len(rest)} can be told from {of.baseline}")
    unknown = [one.row for one in found if one.row not in apart and one.row != of.baseline]
    return [*parts, f"how sure that is of {_shortened(unknown)} is not known"] if unknown else parts


def _several(names: Sequence[str], first: str = "") -> str:
    ordered = sorted(names, key=lambda name: name != first)
    return f"{_shortened(ordered)} {'is' if len(ordered) == 1 else 'are'}"


def _shortened(names: Sequence[str]) -> str:
    """Return names as they stand in a sentence, the first three of many; those with commas are in quotes there.

    >>> _shortened(["a, b"]), _shortened(["a, b", "c", "d", "e", "f"])
    ('a, b', '“a, b”, c, d and 2 others')
    """
    told = [f"“{name}”" if "," in name and len(names) > 1 else name for name in names]
    return join_names(told if len(told) <= 4 else [*told[:3], f"{len(told) - 3} others"])


def _name(measure: Metric) -> str:
    title = measure.title
    return f"{title[0].lower()}{title[1:]}" if title[1:2].islower() and title != "kNN" else title


def _trials(trials: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [one["row"], one["column"], str(one["trial"]), one["settings"], one["value"], "chosen" if one["chosen"] else ""]
        for one in trials
    ]
    return markdown_table(["objective", "on", "trial", "settings", "on validation items", ""], rows, words=True)
