"""Tables for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from contraport.results import MEASURES, Measure


def print_table(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of texts that have the same keys, which head the columns."""
    table = Table(title=title, box=SIMPLE, title_justify="left", show_edge=False, pad_edge=False, padding=0)
    for heading in rows[0]:  # headings break between words, never within one
        widest = max(map(len, [*heading.split(), *(row[heading] for row in rows)]))
        table.add_column(heading, min_width=widest)
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


def result_rows(evaluation: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of an evaluation as texts: shares in per cent, what was not measured as a dash."""
    return [result_row(name, values) for name, values in evaluation["rows"].items()]


def result_row(name: str, values: Mapping[str, float | None]) -> dict[str, str]:
    """Return one row of an evaluation as texts."""
    return {"features": name, **{measure.title: _text(measure, values.get(measure.key)) for measure in MEASURES}}


def _text(measure: Measure, value: float | None) -> str:
    return "-" if value is None else measure.pattern.format(value)
