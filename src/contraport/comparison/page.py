"""A comparison as one figure, and as one HTML page that opens without a network."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from contraport._utils.files import atomic_write
from contraport.comparison.comparison_tables import Comparison, arrow, epoch_tables, explain_verdict, size, written
from contraport.comparison.seed_results import Entry
from contraport.metrics.intervals import Interval
from contraport.plots.colors import SERIES
from contraport.plots.figure_setup import create_figure, escape_dollars
from contraport.reporting.html_page import render_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LETTERS = 36
"""A name of more letters breaks into lines on the figure."""

_ACROSS = 4
"""At most so many columns of the table stand beside one another."""


def comparison_figure(of: Comparison) -> Figure:
    """Return the first measure's means with their intervals, a panel for each column of the table."""
    measure, rows = of.measures[0], of.rows
    across = min(_ACROSS, len(of.columns))
    down = -(-len(of.columns) // across)
    names, heads = [_wrapped(row) for row in rows], [_wrapped(head) for head in of.heads[1:]]
    wide = 0.07 * max(len(line) for name in names for line in name.split("\n"))
    high = 0.26 + 0.13 * max(name.count("\n") for name in names)
    over = 0.15 * max(head.count("\n") for head in heads)
    figure = create_figure(0.6 + max(1.0, wide) + 2.6 * across, down * (0.9 + over + high * len(rows)))
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    scale = 100 if measure.in_percent else 1
    for number, panel in enumerate(axes.flat):
        if number >= len(of.columns):
            panel.set_visible(False)
            continue
        panel.set_title(heads[number], fontsize=9)
        for place, row in enumerate(rows):
            entry = of.entry(row, of.columns[number], measure.key)
            if entry is None or entry.mean is None:
                continue
            color = SERIES[0] if row != of.baseline else SERIES[1]
            ends = [scale * end for end in _ends(entry, entry.mean)]
            panel.plot(ends, [place, place], color=color, linewidth=1.6)
            panel.plot(scale * entry.mean, place, "o", color=color, markersize=4)
            if row == of.baseline:
                panel.axvline(scale * entry.mean, color=color, linewidth=0.6, linestyle=":")
        panel.set_yticks(range(len(rows)), names, fontsize=8)
        panel.set_ylim(len(rows) - 0.5, -0.5)
        panel.tick_params(axis="x", labelsize=8)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
    told = f"{measure.title}{', %' if scale == 100 else ''}"
    figure.supxlabel(escape_dollars(f"{told}, mean over seeds and interval of 95%{_of_data(of)}"), fontsize=9)
    return figure


def _wrapped(name: str) -> str:
    """Return a name as the figure shows it, a long one in lines."""
    return escape_dollars("\n".join(textwrap.wrap(name, _LETTERS)))


def _ends(entry: Entry, mean: float) -> Interval:
    """Return the ends of the line of a mean: where nothing tells how sure it is, the mean itself."""
    return entry.interval or Interval(mean, mean)


def _of_data(of: Comparison) -> str:
    """Return on which data all columns are, where their heads do not say it."""
    return f", {of.heads[0]}" if of.heads[1:] != of.columns else ""


def draw(of: Comparison, path: Path) -> None:
    """Write the figure, where something was measured."""
    if any(entry.mean is not None for entry in of.entries):
        with atomic_write(path) as temporary:
            temporary.write_bytes(_png(of))


def _png(of: Comparison) -> bytes:
    written_to = io.BytesIO()
    comparison_figure(of).savefig(written_to, format="png", dpi=150, facecolor="white")
    return written_to.getvalue()


class Line(NamedTuple):
    """A row of a panel.

    Attributes:
        row: its name.
        begins: where its interval begins, in per cent of the panel.
        length: how long that is.
        mean: where its mean is.
        written: the mean and half of its interval.
        apart: whether it is surely apart from the baseline.
    """

    row: str
    begins: float
    length: float
    mean: float
    written: str
    apart: bool


class Panel(NamedTuple):
    """The first measure's means with their intervals in one column of the table, on a scale from low to high."""

    head: str
    low: str
    high: str
    lines: list[Line]
    baseline: float | None


def build_panels(of: Comparison) -> list[Panel]:
    """Return what the page draws: a panel for each column of the table in which something was measured."""
    if not of.entries:
        return []
    heads = zip(of.columns, of.heads[1:], strict=True)
    return [panel for column, head in heads if (panel := _panel(of, column, head)) is not None]


def _panel(of: Comparison, column: str, head: str) -> Panel | None:
    measure = of.measures[0]
    known = [
        (row, entry, _ends(entry, entry.mean), entry.mean)
        for row in of.rows
        if (entry := of.entry(row, column, measure.key)) is not None and entry.mean is not None
    ]
    if not known:
        return None
    low, high = min(ends.low for _, _, ends, _ in known), max(ends.high for _, _, ends, _ in known)
    wide = (high - low) or 1.0

    def along(value: float) -> float:
        return round(100 * (value - low) / wide, 2)

    lines = [
        Line(
            row,
            along(ends.low),
            along(ends.high) - along(ends.low),
            along(mean),
            written(measure, entry),
            entry.difference is not None and entry.difference.is_significant,
        )
        for row, entry, ends, mean in known
    ]
    baseline = next((line.mean for line in lines if line.row == of.baseline), None)
    return Panel(head, measure.format(low), measure.format(high), lines, baseline)


def render(of: Comparison, commands: list[str]) -> str:
    """Return the page as HTML."""
    tables = []
    for measure in of.measures:
        rows = []
        for row in of.rows:
            cells = []
            for column, (entry, apart) in zip(of.columns, of.cells(row, measure), strict=True):
                difference = "" if apart is None else size(measure, apart) + arrow(apart)
                cells.append((written(measure, entry), difference, row in of.best(column, measure)))
            rows.append((row, cells))
        references = [(name, [of.reference(name, c, measure) for c in of.columns]) for name in of.references]
        tables.append((measure, rows, references, epoch_tables(of, measure)))
    return render_page(
        "comparison.html.j2",
        "contraport.comparison",
        of=of,
        tables=tables,
        claims=[(one, explain_verdict(one)) for one in of.verdicts],
        commands="\n".join(commands),
        panels=build_panels(of),
        of_data=_of_data(of),
        seconds={row: _seconds(of, row) for row in of.rows},
    )


def _seconds(of: Comparison, row: str) -> str:
    known = [entry.seconds for entry in of.entries if entry.row == row and entry.seconds is not None]
    return f"{sum(known) / len(known):.1f}" if known else "–"
