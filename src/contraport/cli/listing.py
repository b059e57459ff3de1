"""`contraport list`: what has a name."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from contraport._utils.formatting import format_flags
from contraport.catalog import OBJECTIVES, RECIPES, list_datasets, list_encoders
from contraport.catalog.recommendations import describe_use_cases
from contraport.cli.config import LIST, ListOptions
from contraport.metrics import METRICS, Metric

_Rows = Sequence[Mapping[str, str]]
"""Of each its name, and what is said of it under other headings."""


def _recipes() -> _Rows:
    return [
        {"name": name, "summary": recipe.summary, "options": format_flags(recipe.settings)}
        for name, recipe in RECIPES.items()
    ]


def _objectives() -> _Rows:
    return [
        {"name": method.name, "summary": method.summary, "when": describe_use_cases(method.name)}
        for method in OBJECTIVES.values()
    ]


def _encoders() -> _Rows:
    return [{"name": encoder.name, "summary": encoder.description} for encoder in list_encoders()]


def _data() -> _Rows:
    return [
        {"name": source.name, "summary": source.description, "looked for in": source.looks}
        for source in list_datasets()
    ]


def _metrics() -> _Rows:
    return [
        {"name": measure.key, "summary": measure.summary, "reading": _reading(measure)} for measure in METRICS.values()
    ]


def _suites() -> _Rows:
    # Here, not above: the other lists need no torch.
    from contraport.comparison.suites import list_suites, load_suite

    return [
        {"name": name, "summary": suite.get("title", ""), "data": "data: " + ", ".join(map(str, suite.get("data", ())))}
        for name, suite in ((name, load_suite(path)) for name, path in list_suites().items())
    ]


_LISTS = {
    "recipes": _recipes,
    "objectives": _objectives,
    "encoders": _encoders,
    "data": _data,
    "metrics": _metrics,
    "suites": _suites,
}
"""What can be listed: rows of a name and what is said of it."""


@LIST.with_signature
def list_names(given: dict[str, Any]) -> _Rows:
    """Return what has a name, with what is said of each.

    Raises:
        UsageError: there is no such list.
    """
    return _LISTS[ListOptions(**given).what]()


def print_names(rows: _Rows) -> None:
    """Print what has a name, and under it what is said of it; plainly, as the losses' own list needs no extra."""
    width = max(60, shutil.get_terminal_size().columns)
    for row in rows:
        name, *texts = row.values()
        print(name)
        for text in filter(None, texts):
            print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))


def _reading(measure: Metric) -> str:
    """Return what a measure counts, which direction is better, and whether it has to be asked for."""
    direction = "" if measure.better == "neither" else f", {measure.better} is better"
    return f"{measure.group}: {measure.unit}{direction}{'' if measure.default else '; where asked for'}"
