"""`contraport list`: what has a name."""

from __future__ import annotations

from typing import Literal

from contraport.cli.tables import print_table


def list_names(what: Literal["objectives", "encoders", "data"]) -> None:
    """Print what has a name, with a line about each.

    Args:
        what: objectives, encoders or data.
    """
    if what == "objectives":
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
    print_table(what, rows)
