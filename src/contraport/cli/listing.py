"""`contraport list`: what has a name."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from contraport.errors import check

_LISTS = ("recipes", "objectives", "encoders", "data")


def list_names(what: Literal["recipes", "objectives", "encoders", "data"]) -> None:
    """Print what has a name, with a line about each.

    Args:
        what: recipes, objectives, encoders or data.
    """
    check(what in _LISTS, f"what: expected one of {', '.join(_LISTS)}, got {what!r}.")
    if what == "recipes":
        from contraport.training.recipes import RECIPES

        rows = [
            {"name": name, "what it does": recipe.summary, "its settings": _flags(recipe.settings)}
            for name, recipe in RECIPES.items()
        ]
    elif what == "objectives":
        from contraport.objectives import CATALOG

        rows = [{"name": recipe.name, "what it does": recipe.summary} for recipe in CATALOG.values()]
    elif what == "encoders":
        from contraport.encoders import list_encoders

        rows = [{"name": encoder.name, "what it is": encoder.description} for encoder in list_encoders()]
    else:
        from contraport.data import list_sources

        rows = [
            {"name": source.name, "what it holds": source.description, "where it is looked for": source.looks}
            for source in list_sources()
        ]
    _print(rows)


def _print(rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of texts, each under its name; plainly, as the losses' own list needs no extra."""
    width = max(60, shutil.get_terminal_size().columns)
    for row in rows:
        name, *texts = row.values()
        print(name)
        for text in filter(None, texts):
            print(textwrap.fill(text, width, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False))


def _flags(settings: Mapping[str, Any]) -> str:
    """Return settings as they stand on a command line."""
    words: list[str] = []
    for name, value in settings.items():
        nested = {f"{name}.{key}": part for key, part in value.items()} if isinstance(value, Mapping) else {name: value}
        words += [f"--{key} {str(part).lower() if isinstance(part, bool) else part}" for key, part in nested.items()]
    return " ".join(words)
