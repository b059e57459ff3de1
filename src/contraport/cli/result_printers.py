"""Functions that print the results of commands as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.measure import Measurement
from rich.table import Table

from contraport._utils.formatting import pluralize
from contraport._utils.progress import make_console_without_markup
from contraport.evaluation.evaluation_results import metric_rows_of_run_difference, metric_tables_by_title

if TYPE_CHECKING:
    from pathlib import Path

    from contraport.auditing import Audit, ViewAudit
    from contraport.comparison import Comparison
    from contraport.estimators import LearnedCost, Map
    from contraport.similarity_search import Clusters, DuplicatesResult, NearestItems


def print_table(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a titled table of dictionaries, with their keys as column headings.

    If the table is wider than the terminal, its widest column is wrapped between words. If it is still too wide, its
    lines exceed the width of the terminal, so that no text is cut.
    """
    print(title)
    width = make_console_without_markup().width
    plain, wrapped = _build_table(rows, wrap_widest_column=False), _build_table(rows, wrap_widest_column=True)
    table = wrapped if _measure_table_width(wrapped).minimum <= width < _measure_table_width(plain).minimum else plain
    if table is plain and width < _measure_table_width(plain).maximum:
        for column in plain.columns:  # otherwise rich shrinks the widest column below its minimum
            column.width = column.min_width
    make_console_without_markup(width=max(width, _measure_table_width(table).minimum)).print(table)


def _build_table(rows: Sequence[Mapping[str, str]], *, wrap_widest_column: bool) -> Table:
    """Build a rich table that wraps its headings, and optionally its widest column."""
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, padding=0)
    widest = max(rows[0], key=lambda heading: max(len(row[heading]) for row in rows))
    for heading in rows[0]:
        texts = [row[heading] for row in rows]
        parts = [word for text in texts for word in text.split()] if wrap_widest_column and heading == widest else texts
        table.add_column(heading, min_width=max(map(len, [*heading.split(), *parts])))
    for row in rows:
        table.add_row(*row.values())
    return table


def _measure_table_width(table: Table) -> Measurement:
    """Return the minimum and maximum widths at which a table can be printed."""
    console = make_console_without_markup()
    return Measurement.get(console, console.options.update(max_width=100_000), table)  # more than any table


def print_metrics_differences_and_verdict(
    results_by_run: Mapping[str, Mapping[str, Any]], metric_selecting_options: Mapping[str, Any]
) -> None:
    """Print each run's metrics and notes, then paired differences and a verdict.

    Only the metrics of the verdict are printed, unless the options have `all`, or `metrics`, which are then all wanted.
    """
    # Here, not above: the other printers need neither torch nor the report.
    from contraport.reporting.reported_run import load_runs
    from contraport.reporting.verdict import choose_verdict_metrics, compose_comparison_sentences

    runs = load_runs(list(results_by_run))
    shown: dict[str, set[str]] = {}  # metric keys by run
    for (name, result), run in zip(results_by_run.items(), runs, strict=True):
        measured = {key for values in result["rows"].values() for key in values}
        shows_all = metric_selecting_options.get("all") or metric_selecting_options.get("metrics")
        chosen = () if shows_all else choose_verdict_metrics([run])
        shown[name] = {metric.key for metric in chosen} or measured  # all if there is no verdict
        num_hidden = len(measured - shown[name])
        rows_of_shown = {
            row: {key: value for key, value in values.items() if key in shown[name]}
            for row, values in result["rows"].items()
        }
        data = f"{name} on {result['data']}" if len(results_by_run) > 1 else result["data"]
        for title, rows in metric_tables_by_title({**result, "rows": rows_of_shown, "data": data}).items():
            print_table(title, rows)
        if num_hidden:
            print(f"{pluralize(num_hidden, 'more metric')}: {name}/evaluation.json, or --all")
        for note in result["notes"]:
            print(note)
    first, *others = results_by_run
    for name in others:
        differences = results_by_run[name]["differences"].get(first, {})
        if rows := metric_rows_of_run_difference({key: differences[key] for key in differences if key in shown[name]}):
            print_table(f"{name} minus {first}, paired by item", rows)
    for sentence in compose_comparison_sentences(runs):
        print(sentence)
    if not others and results_by_run[first]["verdict"]:
        print(results_by_run[first]["verdict"])


def print_neighbors(result: NearestItems) -> None:
    """Print a table of the items nearest to a query."""
    rows = result.format_rows()
    print_table(f"nearest to {result.query_name!r}", rows) if rows else print("no other items")


def print_duplicate_groups(groups: DuplicatesResult) -> None:
    """Print the first items of each of the largest groups of duplicates."""
    from contraport.similarity_search.duplicates import MAX_GROUPS_PRINTED, MAX_SHOWN_NAMES_PER_GROUP

    for number, group in enumerate(groups[:MAX_GROUPS_PRINTED], start=1):
        print(f"group {number}: {pluralize(len(group.names), 'item')}")
        for position, title in zip(
            group.positions, group.list_names_and_descriptions(MAX_SHOWN_NAMES_PER_GROUP), strict=False
        ):
            print(f"    {title} (position {position})")
        if len(group.names) > MAX_SHOWN_NAMES_PER_GROUP:
            print(f"    ... and {len(group.names) - MAX_SHOWN_NAMES_PER_GROUP:,} more")
    if len(groups) > MAX_GROUPS_PRINTED:
        print(f"... and {pluralize(len(groups) - MAX_GROUPS_PRINTED, 'more group', 'more groups')}")
    extra = sum(len(group.names) - 1 for group in groups)
    hint = f"Keeping one item of each removes {pluralize(extra, 'item')}." if groups else "Try a lower --threshold."
    if len(groups) > MAX_GROUPS_PRINTED or any(len(group.names) > MAX_SHOWN_NAMES_PER_GROUP for group in groups):
        hint += " To list all: --out FILE.csv"
    print(f"{pluralize(len(groups), 'group')} of duplicates. {hint}")


def print_clusters(clusters: Clusters) -> None:
    """Print a table of the clusters."""
    print_table(str(clusters), clusters.format_rows())


def print_map(result: Map) -> None:
    """Print the quality of a two-dimensional map, and the folder of its files."""
    print(f"{result}.")
    print(_written_files_line_or_out_hint(result.folder))


def print_learned_cost(result: LearnedCost) -> None:
    """Print how well a learned cost fits, and its strongest feature directions."""
    print(f"{result}.")
    rows = [
        {"direction": str(number), "share of the affinity": f"{share:.1%}"}
        for number, share in enumerate(result.direction_shares[:5].tolist(), start=1)
    ]
    print_table("strongest pairs of directions", rows)
    print(_written_files_line_or_out_hint(result.folder))


def _written_files_line_or_out_hint(folder: Path | None) -> str:
    """Return a line with the output folder, or a hint to pass `--out`."""
    return "No files were written; pass --out FOLDER to write them." if folder is None else f"files: {folder}"


def print_comparison(comparison: Comparison) -> None:
    """Print the tables, sentences, notes and verdicts of a comparison."""
    # Imported here because the other tables need no SciPy.
    from contraport.comparison.comparison_tables import format_difference_rows, format_mean_and_half_width
    from contraport.comparison.summary_sentences import explain_verdict

    header = comparison.table_header_row
    for metric in comparison.metrics:
        rows = [
            [row, *(format_mean_and_half_width(metric, one) for one in comparison.list_row_entries(row, metric))]
            for row in comparison.rows
        ]
        entries = [one for one in comparison.entries if one.metric_key == metric.key and one.num_seeds > 1]
        without = " (not shown where all seeds agree)" if any(one.interval is None for one in entries) else ""
        title = f"{metric.title}, mean over seeds ± half of the 95% interval{without}"
        print_table(title, [dict(zip(header, row, strict=True)) for row in rows])
    for metric in comparison.metrics[:1]:
        if rows := format_difference_rows(comparison, metric):
            title = f"{metric.title}, difference from {comparison.baseline} on the same seeds and items"
            print_table(title, [dict(zip(header, row, strict=True)) for row in rows])
    for sentence in (*comparison.column_summaries, *comparison.notes):
        print(sentence)
    for verdict in comparison.claim_verdicts:
        print(f"{verdict.outcome}: {verdict.claim} {explain_verdict(verdict)}")
    if comparison.entries:
        print(f"page: {comparison.folder / 'page.html'}; tables and results are beside it")


def print_audit(audit: Audit | ViewAudit) -> None:
    """Print an audit's worst pairs or views, its notes and its advice."""
    from contraport.auditing import ViewAudit  # imported here because it needs torch

    rows = audit.format_worst_views() if isinstance(audit, ViewAudit) else audit.format_worst_pairs()
    print_table(audit.worst_table_title, rows)
    for sentence in (*audit.notes, audit.advice):
        print(sentence)
