"""Figure and self-contained HTML page of a comparison."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contraport._utils.files import atomic_write
from contraport.comparison.comparison_result import Comparison
from contraport.comparison.comparison_tables import (
    build_epoch_tables,
    format_mean_and_half_width,
    significant_difference_arrow,
)
from contraport.comparison.summary_sentences import explain_verdict, summarize_first_metric
from contraport.metrics.intervals import Interval
from contraport.plots.figure_setup import SERIES_COLORS, create_figure, encode_png, escape_dollars
from contraport.reporting.html_page_parts import render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_first_metric(comparison: Comparison) -> Figure:
    """Plot the means of the first metric, with one panel for each table column."""
    metric, rows = comparison.metrics[0], comparison.rows
    across = min(4, len(comparison.columns))  # panels in a row
    down = -(-len(comparison.columns) // across)
    names, heads = (
        [_wrap_for_matplotlib(row) for row in rows],
        [_wrap_for_matplotlib(head) for head in comparison.table_header_row[1:]],
    )
    wide = 0.07 * max(len(line) for name in names for line in name.split("\n"))
    high = 0.26 + 0.13 * max(name.count("\n") for name in names)
    over = 0.15 * max(head.count("\n") for head in heads)
    figure = create_figure(0.6 + max(1.0, wide) + 2.6 * across, down * (0.9 + over + high * len(rows)))
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    scale = 100 if metric.is_shown_in_percent else 1
    for number, panel in enumerate(axes.flat):
        if number >= len(comparison.columns):
            panel.set_visible(False)
            continue
        panel.set_title(heads[number], fontsize=9)
        for place, row in enumerate(rows):
            entry = comparison.find_entry(row, comparison.columns[number], metric.key)
            if entry is None or entry.mean is None:
                continue
            color = SERIES_COLORS[0] if row != comparison.baseline else SERIES_COLORS[1]
            ends = [scale * end for end in entry.interval or (entry.mean, entry.mean)]
            panel.plot(ends, [place, place], color=color, linewidth=1.6)
            panel.plot(scale * entry.mean, place, "o", color=color, markersize=4)
            if row == comparison.baseline:
                panel.axvline(scale * entry.mean, color=color, linewidth=0.6, linestyle=":")
        panel.set_yticks(range(len(rows)), names, fontsize=8)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.tick_params(axis="x", labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    label = f"{metric.title}{', %' if scale == 100 else ''}, mean over seeds and interval of 95%"
    figure.supxlabel(escape_dollars(label + _shared_data_suffix(comparison)), fontsize=9)
    return figure


def _wrap_for_matplotlib(name: str) -> str:
    """Wrap a long name into lines and escape its dollar signs."""
    return escape_dollars("\n".join(textwrap.wrap(name, 36)))


def _shared_data_suffix(comparison: Comparison) -> str:
    """Return a title suffix with the data's name, empty if columns have different data."""
    return f", {comparison.table_header_row[0]}" if comparison.table_header_row[1:] != comparison.columns else ""


def save_figure_if_any_mean(comparison: Comparison, path: Path) -> None:
    """Write the comparison's figure to a PNG file, unless no cell has a value to plot."""
    if any(entry.mean is not None for entry in comparison.entries):
        with atomic_write(path) as temporary:
            temporary.write_bytes(encode_png(plot_first_metric(comparison), dpi=150, facecolor="white"))


def build_column_panels(comparison: Comparison) -> list[dict[str, Any]]:
    """Build the panels of the HTML page, one for each table column.

    Columns without a mean are left out. The first metric is used. Positions are in percent of the panel width.
    """
    if not comparison.entries:
        return []
    panels, metric = [], comparison.metrics[0]
    for column, heading in zip(comparison.columns, comparison.table_header_row[1:], strict=True):
        entries = {
            entry.row_name: (entry, entry.mean, entry.interval or Interval(entry.mean, entry.mean))
            for entry in comparison.list_column_entries(column, metric)
            if entry.mean is not None
        }
        if not entries:
            continue
        low = min(interval.low for _, _, interval in entries.values())
        high = max(interval.high for _, _, interval in entries.values())

        def position(value: float, low: float = low, width: float = (high - low) or 1.0) -> float:
            return round(100 * (value - low) / width, 2)

        baseline = entries.get(comparison.baseline)
        lines = [
            {
                "row": row,
                "start": position(interval.low),
                "length": position(interval.high) - position(interval.low),
                "mean": position(mean),
                "text": format_mean_and_half_width(metric, entry),
                "is_significant": entry.difference is not None and entry.difference.is_significant,
            }
            for row, (entry, mean, interval) in entries.items()
        ]
        even = None if baseline is None else position(baseline[1])
        ends = {"low": metric.format(low), "high": metric.format(high)}
        panels.append({"heading": heading, **ends, "lines": lines, "baseline": even})
    return panels


def render_comparison_page(comparison: Comparison, commands: list[str]) -> str:
    """Render the HTML page of a comparison, with the commands that train each run."""
    has_one_column = len(comparison.columns) == 1 and len(comparison.entries) > 0
    heading = summarize_first_metric(comparison, comparison.columns[0]) if has_one_column else None
    rest = [sentence.removeprefix(heading or "").strip() for sentence in comparison.column_summaries]
    seconds: dict[str, list[float]] = {row: [] for row in comparison.rows}
    for entry in comparison.entries:
        if entry.mean_training_seconds is not None:
            seconds[entry.row_name].append(entry.mean_training_seconds)
    return render_page(
        "comparison.html.j2",
        "contraport.comparison",
        comparison=comparison,
        heading=heading,
        sentences=[sentence for sentence in rest if sentence],
        format_mean=format_mean_and_half_width,
        arrow=significant_difference_arrow,
        build_epoch_tables=build_epoch_tables,
        claims=[(one, explain_verdict(one)) for one in comparison.claim_verdicts],
        commands="\n".join(commands),
        panels=build_column_panels(comparison),
        shared_data=_shared_data_suffix(comparison),
        seconds={row: f"{sum(one) / len(one):.1f}" if one else "–" for row, one in seconds.items()},
    )
