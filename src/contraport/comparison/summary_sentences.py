"""Sentences that summarize a comparison and explain its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from contraport._utils.formatting import join_names, lower_first_letter
from contraport.comparison.comparison_tables import format_mean_and_half_width
from contraport.comparison.seed_intervals import MAX_PREDICTED_SEEDS
from contraport.comparison.statistics_and_verdicts import ClaimVerdict, TableEntry
from contraport.metrics import Metric, select_metrics_keeping_order

if TYPE_CHECKING:
    from contraport.comparison.comparison_result import Comparison


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


def summarize_first_metric(comparison: Comparison, column: str) -> str:
    """Summarize in a sentence the first metric on one data set and setting."""
    metric = comparison.metrics[0]
    cells = comparison.list_column_entries(column, metric)
    entries = [one for one in cells if one.mean is not None]
    failed = [one.row_name for one in cells if one.mean is None and one.first_failure_reason]
    failure = [f"{_join_first_few(failed)} failed"] if failed else []
    if not entries:
        return f"{column}: {'; '.join(['nothing was measured', *failure])}."
    sign = -1 if metric.better_direction == "lower" else 1
    best, title = max(entries, key=lambda one: sign * (one.mean or 0.0)), lower_first_letter(metric.title)
    groups = _group_rows_against_baseline(metric, [best, *entries])  # the best row is named first
    superlative = "highest" if metric.better_direction == "neither" else "best"
    value, tied = _describe_mean_with_interval(metric, best), [one.row_name for one in entries if one.mean == best.mean]
    undecided_rows = [] if groups.better else groups.insignificant
    is_undecided = len(undecided_rows) > 0 and best.row_name in (comparison.baseline, *undecided_rows)
    if is_undecided:
        start = _compose_insignificance_clause(undecided_rows, comparison.baseline)
        baseline = next((one for one in entries if one.row_name == comparison.baseline), best)
        baseline_value = _describe_mean_with_interval(metric, baseline)
        best_clause = "" if value == baseline_value else f" and {value} for {best.row_name}"
        start += f" on {metric.title_with_definite_article}"
        parts = [f"{start}, {baseline_value} for {baseline.row_name}{best_clause}"]
    elif len(tied) > 1:
        same = "same" if len(tied) == len(entries) else f"same {superlative}"
        parts = [f"{_join_first_few(tied)} have the {same} {title}, {value}"]
    elif len(comparison.rows) > 1:
        parts = [f"{best.row_name} has the {superlative} {title}, {value}"]
    else:
        parts = [f"{best.row_name} has {value} on {metric.title_with_definite_article}"]
    parts += _list_clauses_against_baseline(
        comparison.baseline, metric, entries, groups, omit_insignificant=is_undecided
    )
    parts += failure
    sentence = f"{column}: {'; '.join(parts)}."
    if unbeaten := _list_unbeaten_references(comparison, column, metric, best):
        sentence += f" No row is better than {join_names(unbeaten)}, without training."
    return sentence


def _describe_mean_with_interval(metric: Metric, entry: TableEntry) -> str:
    """Format the mean of a metric over seeds, with its unit and interval."""
    value = f"{format_mean_and_half_width(metric, entry)}{'%' if metric.is_shown_in_percent else ''}"
    if entry.interval is None:
        reason = f"the {entry.num_seeds} seeds agree exactly" if entry.num_seeds > 1 else "there is one seed"
        value = f"{value} without an interval, as {reason}"
    return value


def summarize_significant_row_differences(comparison: Comparison, column: str) -> str:
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
    start = f" Of {len(metrics)} metrics, each tested by itself against {comparison.baseline}, "
    return f"{start}{'; '.join(clauses)}." if clauses else ""


def summarize_seeds_to_decide(comparison: Comparison, column: str) -> str:
    """Return a sentence on how many seeds the undecided comparisons need."""
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


def _list_unbeaten_references(comparison: Comparison, column: str, metric: Metric, best: TableEntry) -> list[str]:
    """List the references, such as raw inputs, that no trained objective beats."""
    if metric.better_direction == "neither":
        return []
    sign = -1 if metric.better_direction == "lower" else 1
    unit = "%" if metric.is_shown_in_percent else ""
    names = []
    for name, by_column in comparison.reference_metrics.items():
        value = by_column.get(column, {}).get(metric.key)
        if value is not None and sign * value >= sign * (best.mean or 0.0):
            names.append(f"{name} ({comparison.format_reference(name, column, metric)}{unit})")
    return names


class _RowsAgainstBaseline(NamedTuple):
    """Row names grouped by the significance of their difference from the baseline.

    For a metric without a better direction, those above the baseline are in `better`.
    """

    better: list[str]
    worse: list[str]
    insignificant: list[str]


def _group_rows_against_baseline(metric: Metric, entries: Sequence[TableEntry]) -> _RowsAgainstBaseline:
    """Group the rows by the significance of their difference from the baseline."""
    differences = {one.row_name: one.difference for one in entries if one.difference is not None}
    above = [name for name, one in differences.items() if one.low > 0]
    below = [name for name, one in differences.items() if one.high < 0]
    insignificant = [name for name in differences if name not in above and name not in below]
    better, worse = (below, above) if metric.better_direction == "lower" else (above, below)
    return _RowsAgainstBaseline(better, worse, insignificant)


def _compose_insignificance_clause(rows: Sequence[str], baseline: str) -> str:
    """Return a clause that names the rows without significant difference from the baseline."""
    return f"{_join_first_few(rows)} {'does' if len(rows) == 1 else 'do'} not differ significantly from {baseline}"


def _list_clauses_against_baseline(
    baseline: str,
    metric: Metric,
    entries: Sequence[TableEntry],
    groups: _RowsAgainstBaseline,
    *,
    omit_insignificant: bool,
) -> list[str]:
    """Return clauses of a sentence that compares the rows of the table with the baseline.

    With `omit_insignificant`, the clause about these rows is left out, as the sentence begins with it.
    """
    better, worse, insignificant = groups
    more, less = ("above", "below") if metric.better_direction == "neither" else ("better than", "worse")
    parts = []
    if better:
        parts.append(f"{_join_first_few(better)} {'is' if len(better) == 1 else 'are'} significantly {more} {baseline}")
    if worse:
        parts.append(f"{_join_first_few(worse)} {'is' if len(worse) == 1 else 'are'} significantly {less}")
    if insignificant and not omit_insignificant:
        parts.append(_compose_insignificance_clause(insignificant, baseline))
    compared = [one for one in entries if one.row_name in (baseline, *insignificant)]
    if insignificant and not better and (fastest := _find_clearly_fastest_clause(compared)):
        parts.append(fastest)
    unknown: dict[str, list[str]] = {}
    for one in entries:
        if one.difference is None and one.row_name != baseline:
            unknown.setdefault(one.missing_difference_reason or "its variance is unknown", []).append(one.row_name)
    return parts + [f"no interval for {_join_first_few(names)}, as {reason}" for reason, names in unknown.items()]


def _find_clearly_fastest_clause(entries: Sequence[TableEntry]) -> str | None:
    """Return a clause about the clearly fastest row of a comparison, or None.

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
