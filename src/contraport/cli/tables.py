"""Tables for the console."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

_COLUMNS = {
    "linear_probe": "linear probe",
    "knn": "kNN",
    "alignment": "alignment",
    "uniformity": "uniformity",
}
_SHARES = ("linear_probe", "knn")


def print_table(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of texts that have the same keys, which head the columns."""
    table = Table(title=title, box=SIMPLE, title_justify="left")
    for number, heading in enumerate(rows[0]):
        table.add_column(heading, no_wrap=number == 0)
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)


def result_rows(evaluation: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of an evaluation as texts: shares in per cent, what was not measured as a dash."""
    return [result_row(name, values) for name, values in evaluation["rows"].items()]


def result_row(name: str, values: Mapping[str, float | None]) -> dict[str, str]:
    """Return one row of an evaluation as texts."""
    return {"features": name, **{heading: _text(key, values.get(key)) for key, heading in _COLUMNS.items()}}


def _text(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if key in _SHARES else f"{value:.3f}"
