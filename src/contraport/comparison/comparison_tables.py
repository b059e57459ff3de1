"""Tables of a comparison in Markdown, with means, differences and epochs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from contraport.comparison.statistics_and_verdicts import SeedMeanAtEpoch, TableEntry
from contraport.metrics import Metric

if TYPE_CHECKING:
    from contraport.comparison.comparison_result import Comparison


def format_mean_and_half_width(metric: Metric, entry: TableEntry | SeedMeanAtEpoch | None) -> str:
    """Format a mean with its interval's half-width, such as "84.2 ± 1.1".

    Without a mean, the text is "failed" if training failed, otherwise a dash.
    """
    if entry is None or entry.mean is None:
        return "failed" if isinstance(entry, TableEntry) and entry.first_failure_reason else "—"
    mean = metric.format(entry.mean).removesuffix("%")
    if entry.interval is None:
        return mean
    return f"{mean} ± {metric.format((entry.interval.high - entry.interval.low) / 2).removesuffix('%')}"


def format_markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, align_all_left: bool = False) -> str:
    """Format a Markdown table, with all columns but the first right-aligned by default."""
    lines = [header, ["---", *["---" if align_all_left else "---:"] * (len(header) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def significant_difference_arrow(entry: TableEntry | None) -> str:
    """Return an arrow if the difference from the baseline is significant, otherwise ""."""
    difference = None if entry is None else entry.difference
    return "" if difference is None or not difference.is_significant else " ▲" if difference.value > 0 else " ▼"


def format_means_table(comparison: Comparison, metric: Metric) -> str:
    """Return the Markdown table of a metric's means over seeds, with one row per objective."""
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
    """Formatted means of a metric by objective and epoch, for a column of the comparison."""

    column: str
    epochs: list[int]
    means_by_row: dict[str, list[str]]


def build_epoch_tables(comparison: Comparison, metric: Metric) -> list[EpochTable]:
    """Build a table of a metric by objective and epoch, for each column of the comparison."""
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


def format_difference_rows(comparison: Comparison, metric: Metric) -> list[list[str]]:
    """Return one table row per objective: its name, then its differences from the baseline."""
    rows = []
    for row in comparison.rows:
        if row != comparison.baseline:
            differences = (one and one.difference for one in comparison.list_row_entries(row, metric))
            texts = ("—" if one is None else metric.format_difference(one, signed=True) for one in differences)
            rows.append([row, *texts])
    return rows


def list_table_captions_and_tables(comparison: Comparison) -> list[str]:
    """Return captions and Markdown tables: mean metrics, and differences from the baseline."""
    parts = []
    for metric in comparison.metrics:
        unit = "%" if metric.is_shown_in_percent else metric.unit
        better = "" if metric.better_direction == "neither" else f" ({metric.better_direction} is better)"
        parts.append(
            f"{metric.title}, {unit}{better}: mean over seeds ± half of its 95% interval; ▲ ▼: significantly above or "
            f"below {comparison.baseline}"
        )
        parts.append(format_means_table(comparison, metric))
    for metric in comparison.metrics[:1]:
        if rows := format_difference_rows(comparison, metric):
            parts.append(
                f"{metric.title}: difference from {comparison.baseline} on the same seeds and items, with intervals "
                "that hold at 95% for all comparisons of the table at once"
            )
            parts.append(format_markdown_table(comparison.table_header_row, rows))
    return parts
