"""Comparison result and its tables and summary sentences in Markdown, CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from contraport._utils.files import format_csv
from contraport._utils.formatting import join_names, lower_first_letter
from contraport.comparison.result_statistics import ClaimVerdict, EpochMean, TableEntry, to_json_record
from contraport.comparison.seed_intervals import MAX_PREDICTED_SEEDS
from contraport.metrics import Metric, select_metrics_keeping_order
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes


@accept_deprecated_keywords(reference_values="reference_metrics")
@keep_deprecated_attributes(
    reference_values="reference_metrics",
    trials="search_trials",
    verdicts="claim_verdicts",
    missing="num_missing",
    entry="find_entry",
    sentences="summary_sentences",
    headings="table_header_row",
    best_rows="rows_with_best_mean",
)
@dataclass(frozen=True)
class Comparison:
    """Result of a comparison of objectives, with its tables and notes.

    Attributes:
        baseline: name of the row that the others are compared with.
        rows: names of the rows (objectives).
        columns: names of the columns, each one data set with one setting.
        entries: table entries, one for each row, column and metric.
        epoch_means: means over seeds at intermediate epochs; empty unless the training runs used `keep_every`.
        reference_metrics: metrics of the untrained encoder and of the raw inputs, by their name, column and metric key.
        search_spaces: range of each searched hyperparameter, by row and hyperparameter.
        search_trials: records of the hyperparameter search: row, column, settings, and value on the validation items.
        notes: notes printed below the tables.
        num_missing: number of training runs that are not done yet.
        column_data: name of the data of each column, with which the column's name begins; empty: the part of its name
            before the first comma.
    """

    title: str
    folder: Path
    baseline: str
    rows: list[str]
    columns: list[str]
    entries: list[TableEntry]
    claim_verdicts: list[ClaimVerdict] = field(default_factory=list)
    epoch_means: list[EpochMean] = field(default_factory=list)
    reference_metrics: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    search_spaces: dict[str, dict[str, str]] = field(default_factory=dict)
    search_trials: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    num_missing: int = 0
    column_data: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> list[Metric]:
        """Metrics of the tables in order, the main metric first."""
        return select_metrics_keeping_order([entry.metric_key for entry in self.entries])

    @property
    def table_header_row(self) -> list[str]:
        """Header row of the tables, beginning with the heading of row names.

        Data that all columns share are named in the first heading only.
        """
        data = set(self.column_data or (column.partition(", ")[0] for column in self.columns))
        if len(self.columns) == 1 or len(data) > 1:
            return ["objective", *self.columns]
        (shared,) = data
        return [f"on {shared}", *(column.removeprefix(f"{shared}, ") for column in self.columns)]

    def find_entry(self, row: str, column: str, metric: str) -> TableEntry | None:
        """Return the table entry for a row, column and metric key, or None."""
        place = (row, column, metric)
        return next((one for one in self.entries if (one.row_name, one.column_name, one.metric_key) == place), None)

    def list_row_entries(self, row: str, metric: Metric) -> list[TableEntry | None]:
        """Return the entry of a row in each column, None where missing."""
        return [self.find_entry(row, column, metric.key) for column in self.columns]

    def list_column_entries(self, column: str, metric: Metric) -> list[TableEntry]:
        """Return a column's table entries for one metric."""
        return [one for one in self.entries if (one.column_name, one.metric_key) == (column, metric.key)]

    def rows_with_best_mean(self, column: str, metric: Metric) -> set[str]:
        """Return the names of the rows with the best mean in a column.

        The set is empty if the metric has no better direction, or if all rows with a mean, or the only one, share it.
        """
        means = {one.row_name: one.mean for one in self.list_column_entries(column, metric) if one.mean is not None}
        if metric.better_direction == "neither" or len(set(means.values())) < 2:
            return set()
        best = min(means.values()) if metric.better_direction == "lower" else max(means.values())
        return {row for row, mean in means.items() if mean == best}

    def format_reference(self, name: str, column: str, metric: Metric) -> str:
        """Format the metric value of a reference, such as the untrained encoder."""
        value = self.reference_metrics.get(name, {}).get(column, {}).get(metric.key)
        return "—" if value is None else metric.format(value).removesuffix("%")

    @property
    def search_space_sentences(self) -> list[str]:
        """One sentence for each row, with the ranges of its searched hyperparameters."""
        return [
            f"{row}: {', '.join(f'{key} from {span}' for key, span in spans.items()) or 'no searchable settings'}"
            for row, spans in self.search_spaces.items()
        ]

    @property
    def summary_sentences(self) -> list[str]:
        """Summary of each column in one or several sentences."""
        if not self.entries:
            return []
        return [
            summarize_first_metric(self, column)
            + _summarize_significant_metrics(self, column)
            + _summarize_seeds_to_decide(self, column)
            for column in self.columns
        ]

    def markdown(self) -> str:
        """Return the tables, sentences, notes, verdicts and search trials as Markdown."""
        parts = [
            f"# {self.title}",
            *_list_mean_and_difference_tables(self),
            "\n".join(f"- {one}" for one in self.summary_sentences),
        ]
        for metric in self.metrics:
            for table in build_epoch_tables(self, metric):
                rows = [[row, *means] for row, means in table.means_by_row.items()]
                parts.append(f"{metric.title} by epoch, {table.column}")
                parts.append(format_markdown_table(["objective", *map(str, table.epochs)], rows))
        parts += self.notes
        if self.claim_verdicts:
            rows = [[one.claim, one.outcome, explain_verdict(one)] for one in self.claim_verdicts]
            parts += ["## Claims", format_markdown_table(["claim", "verdict", "why"], rows, align_left=True)]
        if self.search_trials:
            parts += ["## Searched settings", *(f"- {sentence}" for sentence in self.search_space_sentences)]
            keys = ("row", "column", "trial", "settings", "value")
            rows = [[*(str(one[key]) for key in keys), "chosen" if one["chosen"] else ""] for one in self.search_trials]
            head = ["objective", "on", "trial", "settings", "on validation items", ""]
            parts.append(format_markdown_table(head, rows, align_left=True))
        return "\n\n".join(parts) + "\n"

    def csv(self) -> str:
        """Return the table entries as CSV text, one line for each entry."""
        heading = ("row", "column", "measure", "seeds", "mean", "low", "high", "difference", "from", "to", "seconds")
        rows = (
            (*one[:5], *(one.interval or (None,) * 2), *(one.difference or (None,) * 3), one.mean_training_seconds)
            for one in self.entries
        )
        return format_csv(heading, rows)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the comparison as a dictionary for `results.json`."""
        return {
            "title": self.title,
            "baseline": self.baseline,
            "rows": self.rows,
            "columns": self.columns,
            "column_data": self.column_data,
            "entries": [to_json_record(entry) for entry in self.entries],
            "sentences": self.summary_sentences,
            "verdicts": [
                {"says": one.claim, "verdict": one.outcome, "measure": one.metric_key, "why": explain_verdict(one)}
                | {
                    # At the maximum the search gave up: it is no number of seeds that would decide.
                    "seeds": None if one.num_seeds_to_decide == MAX_PREDICTED_SEEDS else one.num_seeds_to_decide,
                    "found": {name: list(gain) for name, gain in one.gains.items()},
                }
                for one in self.claim_verdicts
            ],
            "waypoints": [to_json_record(one) for one in self.epoch_means],
            "references": self.reference_metrics,
            "spaces": self.search_spaces,
            "trials": self.search_trials,
            "notes": self.notes,
            "lacking": self.num_missing,
        }


def explain_verdict(verdict: ClaimVerdict) -> str:
    """Return one or two sentences with the differences behind a verdict."""
    if not verdict.gains:
        return "Not measured, or with one seed only."
    better = [name for name, gain in verdict.gains.items() if gain.low > 0]
    worse = [name for name, gain in verdict.gains.items() if gain.high < 0]
    largest = max(verdict.gains, key=lambda name: abs(verdict.gains[name].value))
    (metric,) = select_metrics_keeping_order([verdict.metric_key])
    text = f"{largest}: {metric.format_difference(verdict.gains[largest], signed=True)}."
    if len(verdict.gains) > 1:
        counts = []
        for names, direction in ((better, "better"), (worse, "worse")):
            is_listed = 0 < len(names) <= 4 and names != [largest]  # the largest is named below
            listed = f" ({'; '.join(names)})" if is_listed else ""
            counts.append(f"{len(names)} significantly {direction}{listed}")
        text = f"Of {len(verdict.gains)} comparisons, {' and '.join(counts)}. Largest difference, {text}"
    if verdict.num_seeds_to_decide is None:
        return text
    if verdict.num_seeds_to_decide == MAX_PREDICTED_SEEDS:
        return f"{text} If the differences stayed the same, more seeds would not decide it: it needs more test items."
    return f"{text} If the differences stayed the same, about {verdict.num_seeds_to_decide} seeds would decide it."


def format_mean_and_half_width(metric: Metric, entry: TableEntry | EpochMean | None) -> str:
    """Format a mean with half its interval, such as "84.2 ± 1.1".

    Without a mean, the text is "failed" if training failed, otherwise a dash.
    """
    if entry is None or entry.mean is None:
        return "failed" if isinstance(entry, TableEntry) and entry.first_failure_reason else "—"
    mean = metric.format(entry.mean).removesuffix("%")
    if entry.interval is None:
        return mean
    return f"{mean} ± {metric.format((entry.interval.high - entry.interval.low) / 2).removesuffix('%')}"


def format_markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, align_left: bool = False) -> str:
    """Return a Markdown table whose columns after the first are right-aligned."""
    lines = [header, ["---", *["---" if align_left else "---:"] * (len(header) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def significant_difference_arrow(entry: TableEntry | None) -> str:
    """Return an arrow if the difference from the baseline is significant, otherwise ""."""
    difference = None if entry is None else entry.difference
    return "" if difference is None or not difference.is_significant else " ▲" if difference.value > 0 else " ▼"


def format_means_table(comparison: Comparison, metric: Metric) -> str:
    """Return the Markdown table of the means of a metric."""
    rows = []
    for row in comparison.rows:
        entries = comparison.list_row_entries(row, metric)
        rows.append(
            [row, *(format_mean_and_half_width(metric, one) + significant_difference_arrow(one) for one in entries)]
        )
    for name in comparison.reference_metrics:
        values = [comparison.format_reference(name, column, metric) for column in comparison.columns]
        rows.append([f"*{name}*", *values])
    return format_markdown_table(comparison.table_header_row, rows)


class EpochTable(NamedTuple):
    """Formatted means of one metric and one column, by row and epoch."""

    column: str
    epochs: list[int]
    means_by_row: dict[str, list[str]]


def build_epoch_tables(comparison: Comparison, metric: Metric) -> list[EpochTable]:
    """Return tables of a metric's means by epoch, one for each column."""
    tables = []
    for column in comparison.columns:
        means = {
            (one.row_name, one.epoch): one
            for one in comparison.epoch_means
            if (one.column_name, one.metric_key) == (column, metric.key)
        }
        epochs = sorted({epoch for _, epoch in means})
        if epochs:
            rows = {
                row: [format_mean_and_half_width(metric, means.get((row, epoch))) for epoch in epochs]
                for row in comparison.rows
            }
            tables.append(EpochTable(column, epochs, rows))
    return tables


def _list_mean_and_difference_tables(comparison: Comparison) -> list[str]:
    """Return captions and Markdown tables of the means and the differences."""
    parts = []
    for metric in comparison.metrics:
        unit = "%" if metric.is_shown_in_percent else metric.unit
        better = "" if metric.better_direction == "neither" else f" ({metric.better_direction} is better)"
        parts.append(
            f"{metric.title}, {unit}{better}: mean over seeds ± half of its 95% interval; ▲ ▼: significantly above or "
            f"below {comparison.baseline}"
        )
        parts.append(format_means_table(comparison, metric))
    if comparison.metrics:
        metric = comparison.metrics[0]
        rows = []
        for row in comparison.rows:
            if row != comparison.baseline:
                entries = comparison.list_row_entries(row, metric)
                differences = (None if one is None else one.difference for one in entries)
                texts = ("—" if one is None else metric.format_difference(one, signed=True) for one in differences)
                rows.append([row, *texts])
        if rows:
            parts.append(
                f"{metric.title}: difference from {comparison.baseline} on the same seeds and items, with intervals "
                "that hold at 95% for all comparisons of the table at once"
            )
            parts.append(format_markdown_table(comparison.table_header_row, rows))
    return parts


def summarize_first_metric(comparison: Comparison, column: str) -> str:
    """Summarize the first metric of a column in one sentence."""
    metric = comparison.metrics[0]
    cells = comparison.list_column_entries(column, metric)
    entries = [one for one in cells if one.mean is not None]
    failed = [one.row_name for one in cells if one.mean is None and one.first_failure_reason]
    failure = [f"{_join_first_few(failed)} failed"] if failed else []
    if not entries:
        return f"{column}: {'; '.join(['nothing was measured', *failure])}."
    sign = -1 if metric.better_direction == "lower" else 1
    best, title = max(entries, key=lambda one: sign * (one.mean or 0.0)), lower_first_letter(metric.title)
    groups = _group_rows_by_significance(metric, entries)
    superlative = "highest" if metric.better_direction == "neither" else "best"
    value, tied = _describe_mean_with_interval(metric, best), [one.row_name for one in entries if one.mean == best.mean]
    undecided_rows = [] if groups.better else groups.insignificant
    is_undecided = len(undecided_rows) > 0 and best.row_name in (comparison.baseline, *undecided_rows)
    if is_undecided:
        start = _compose_insignificance_clause(undecided_rows, comparison.baseline, first_row=best.row_name)
        parts = [f"{start} on {title}, {_describe_baseline_and_best_means(comparison, metric, entries, best)}"]
    elif len(tied) > 1:
        same = "same" if len(tied) == len(entries) else f"same {superlative}"
        parts = [f"{_join_first_few(tied)} have the {same} {title}, {value}"]
    elif len(comparison.rows) > 1:
        parts = [f"{best.row_name} has the {superlative} {title}, {value}"]
    else:
        parts = [f"{best.row_name} has {value} on {title}"]
    parts += _list_clauses_against_baseline(
        comparison, metric, entries, best.row_name, omit_insignificant_rows=is_undecided
    )
    parts += failure
    sentence = f"{column}: {'; '.join(parts)}."
    if unbeaten := _describe_unbeaten_references(comparison, column, metric, best):
        sentence += f" No row is better than without training: {join_names(unbeaten)}."
    return sentence


def _describe_mean_with_interval(metric: Metric, entry: TableEntry) -> str:
    """Return the mean of an entry as text, with unit and interval."""
    value = f"{format_mean_and_half_width(metric, entry)}{'%' if metric.is_shown_in_percent else ''}"
    if entry.interval is None:
        reason = f"the {entry.num_seeds} seeds agree exactly" if entry.num_seeds > 1 else "there is one seed"
        value = f"{value} without an interval, as {reason}"
    return value


def _describe_baseline_and_best_means(
    comparison: Comparison, metric: Metric, entries: Sequence[TableEntry], best: TableEntry
) -> str:
    """Describe the means of the baseline and of the best row.

    If both texts are equal, only the baseline is named.
    """
    baseline = next((one for one in entries if one.row_name == comparison.baseline), best)
    values = {one.row_name: _describe_mean_with_interval(metric, one) for one in (baseline, best)}
    return " and ".join(
        f"{value} for {row}"
        for row, value in values.items()
        if row == baseline.row_name or value != values[baseline.row_name]
    )


def _summarize_significant_metrics(comparison: Comparison, column: str) -> str:
    """Return a sentence on the metrics with significant differences from the baseline."""
    metrics, clauses, equal = comparison.metrics, [], []
    others = [row for row in comparison.rows if row != comparison.baseline]
    missing: dict[str, list[str]] = {}
    for row in others if len(metrics) > 1 else ():
        names: dict[str, list[str]] = {"better": [], "worse": [], "different": []}
        for metric in metrics:
            entry, title = comparison.find_entry(row, column, metric.key), lower_first_letter(metric.title)
            if entry is None or entry.difference is None:
                if metric != metrics[0] and entry is not None and entry.missing_difference_reason:
                    missing.setdefault(f"{row}, as {entry.missing_difference_reason}", []).append(title)
            elif entry.difference.is_significant:
                is_better = (entry.difference.value > 0) == (metric.better_direction == "higher")
                word = "better" if is_better else "worse"
                names["different" if metric.better_direction == "neither" else word].append(title)
        counts = [f"{word} in {len(titles)} ({_join_first_few(titles)})" for word, titles in names.items() if titles]
        if counts:
            clauses.append(f"{row} is significantly {join_names(counts)}")
        else:
            equal.append(row)
    if equal:
        clauses.append(f"{_join_first_few(equal)} in none" if clauses else "none differs significantly")
    clauses += [f"no interval in {_join_first_few(titles)} for {reason}" for reason, titles in missing.items()]
    start = f" Of {len(metrics)} metrics, each tested by itself against {comparison.baseline}: "
    return f"{start}{'; '.join(clauses)}." if clauses else ""


def _summarize_seeds_to_decide(comparison: Comparison, column: str) -> str:
    """Return a sentence on how many seeds would decide the undecided differences."""
    metric = comparison.metrics[0]
    undecided = {
        one.row_name: one.num_seeds_to_decide
        for one in comparison.list_column_entries(column, metric)
        if one.num_seeds_to_decide is not None
    }
    open_rows = [row for row, seeds in undecided.items() if seeds == MAX_PREDICTED_SEEDS]
    clauses: list[str] = []
    for seeds in sorted({*undecided.values()} - {MAX_PREDICTED_SEEDS}):
        rows = _join_first_few([row for row, number in undecided.items() if number == seeds])
        clauses.append(f"{seeds} for {rows}" if clauses else f"about {seeds} seeds for {rows}")
    needed = join_names(clauses or [""])
    text = f" If the differences stayed the same, a decision would need {needed}." if clauses else ""
    if open_rows:
        text += f" For {_join_first_few(open_rows)}, more seeds would not decide it, but more test items may."
    return text


def _describe_unbeaten_references(comparison: Comparison, column: str, metric: Metric, best: TableEntry) -> list[str]:
    """Return the references, such as raw inputs, that no row beats."""
    if metric.better_direction == "neither":
        return []
    sign = -1 if metric.better_direction == "lower" else 1
    unit = "%" if metric.is_shown_in_percent else ""
    names = []
    for name, by_column in comparison.reference_metrics.items():
        value = by_column.get(column, {}).get(metric.key)
        if value is not None and sign * value >= sign * (best.mean or 0.0):
            names.append(f"{name} {comparison.format_reference(name, column, metric)}{unit}")
    return names


class _RowsBySignificance(NamedTuple):
    """Names of the rows by significance of their difference from the baseline.

    For a metric without a better direction, those above the baseline are in `better`.
    """

    better: list[str]
    worse: list[str]
    insignificant: list[str]


def _group_rows_by_significance(metric: Metric, entries: Sequence[TableEntry]) -> _RowsBySignificance:
    """Group the rows by the significance of their difference from the baseline."""
    differences = {one.row_name: one.difference for one in entries if one.difference is not None}
    above = [name for name, one in differences.items() if one.low > 0]
    below = [name for name, one in differences.items() if one.high < 0]
    insignificant = [name for name in differences if name not in above and name not in below]
    better, worse = (below, above) if metric.better_direction == "lower" else (above, below)
    return _RowsBySignificance(better, worse, insignificant)


def _compose_insignificance_clause(rows: Sequence[str], baseline: str, *, first_row: str) -> str:
    """Return the clause "b and c do not differ significantly from a"."""
    names = _join_first_few(sorted(rows, key=lambda name: name != first_row))
    return f"{names} {'does' if len(rows) == 1 else 'do'} not differ significantly from {baseline}"


def _list_clauses_against_baseline(
    comparison: Comparison,
    metric: Metric,
    entries: Sequence[TableEntry],
    best_row: str,
    *,
    omit_insignificant_rows: bool,
) -> list[str]:
    """Return clauses that compare the rows with the baseline.

    With `omit_insignificant_rows`, the clause about the last kind is left out, as the sentence begins with it.
    """
    baseline = comparison.baseline
    better, worse, insignificant = _group_rows_by_significance(metric, entries)
    more, less = ("above", "below") if metric.better_direction == "neither" else ("better than", "worse")
    parts = []
    if better:
        names = _join_first_few(sorted(better, key=lambda name: name != best_row))
        parts.append(f"{names} {'is' if len(better) == 1 else 'are'} significantly {more} {baseline}")
    if worse:
        parts.append(f"{_join_first_few(worse)} {'is' if len(worse) == 1 else 'are'} significantly {less}")
    if insignificant and not omit_insignificant_rows:
        parts.append(_compose_insignificance_clause(insignificant, baseline, first_row=best_row))
    compared = [one for one in entries if one.row_name in (baseline, *insignificant)]
    if insignificant and not better and (fastest := _find_clearly_fastest_clause(compared)):
        parts.append(fastest)
    unknown: dict[str, list[str]] = {}
    for one in entries:
        if one.difference is None and one.row_name != baseline:
            unknown.setdefault(one.missing_difference_reason or "its variance is unknown", []).append(one.row_name)
    return parts + [f"no interval for {_join_first_few(names)}, as {reason}" for reason, names in unknown.items()]


def _find_clearly_fastest_clause(entries: Sequence[TableEntry]) -> str | None:
    """Return a clause that names a clearly fastest row, or None.

    The load of the machine can change times severalfold. So each row needs at least two training runs, and the longest
    run of the fastest row must be shorter than every run of the others. The means of the fastest and of the
    slowest row must differ by half, as those of one computer vary by a third with its other work.
    """
    if any(one.mean_training_seconds is None or len(one.seconds_by_training) < 2 for one in entries):
        return None
    fastest, *others = sorted(entries, key=lambda one: one.mean_training_seconds or 0.0)
    if not others or max(fastest.seconds_by_training) >= min(min(one.seconds_by_training) for one in others):
        return None
    least, most = fastest.mean_training_seconds or 0.0, others[-1].mean_training_seconds or 0.0
    times = f"{least:.3g} s per training run, {others[-1].row_name} {most:.3g} s"
    return f"{fastest.row_name} is the fastest of these, {times}" if most >= 1.5 * least else None


def _join_first_few(names: Sequence[str]) -> str:
    """Join up to four names, or three and the number of others.

    >>> _join_first_few(["a, b"]), _join_first_few(["a, b", "c", "d", "e", "f"])
    ('a, b', '“a, b”, c, d and 2 others')
    """
    quoted = [f"“{name}”" if "," in name and len(names) > 1 else name for name in names]
    return join_names(quoted if len(quoted) <= 4 else [*quoted[:3], f"{len(quoted) - 3} others"])
