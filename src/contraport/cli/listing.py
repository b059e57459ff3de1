"""`contraport list`: what has a name."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from typing import Any

from contraport.catalog import OBJECTIVES, RECIPES, list_encoders, list_sources
from contraport.catalog.choosing import when_to_use
from contraport.measures import MEASURES, Measure
from contraport.options import as_flags
from contraport.verbs.list import VERB, ListOptions

Rows = Sequence[Sequence[str]]


def _recipes() -> Rows:
    return [(name, recipe.summary, as_flags(recipe.settings)) for name, recipe in RECIPES.items()]


def _objectives() -> Rows:
    return [(method.name, method.summary, when_to_use(method.name)) for method in OBJECTIVES.values()]


def _encoders() -> Rows:
    return [(encoder.name, encoder.description) for encoder in list_encoders()]


def _data() -> Rows:
    return [(source.name, source.description, source.looks) for source in list_sources()]


def _measures() -> Rows:
    return [(measure.key, measure.summary, _reading(measure)) for measure in MEASURES.values()]


_LISTS = {
    "recipes": _recipes,
    "objectives": _objectives,
    "encoders": _encoders,
    "data": _data,
    "measures": _measures,
}
"""What can be listed: rows of a name and what is said of it."""


@VERB.keywords
def list_names(given: dict[str, Any]) -> None:
    """Print what has a name, with a line about each.

    Raises:
        UsageError: there is no such list.
    """
    _print(_LISTS[ListOptions(**given).what]())


def _print(rows: Rows) -> None:
    """Print rows of texts, each under its name; plainly, as the losses' own list needs no extra."""
    width = max(60, shutil.get_terminal_size().columns)
    for row in rows:
        name, *texts = row
        print(name)
        for text in filter(None, texts):
            print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))


def _reading(measure: Measure) -> str:
    """Return what a measure counts, which direction is better, and whether it has to be asked for."""
    direction = "" if measure.better == "neither" else f", {measure.better} is better"
    return f"{measure.group}: {measure.unit}{direction}{'' if measure.usual else '; where asked for'}"
