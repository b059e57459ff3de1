"""The public names of contraport: `__init__.pyi` lists them, and each is imported when it is first asked for.

So one list serves editors, type checkers and Python, and `contraport --help` need not wait for torch.
"""

from __future__ import annotations

import ast
import difflib
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

from contraport.errors import needing

EXTRAS = {
    "auditing": "train",
    "cli": "train,report",
    "comparing": "train,report",
    "estimators": "train",
    "evaluation": "train",
    "reporting": "report",
    "searching": "train",
    "training": "train",
}
"""By room, which extra brings what it needs; torch and numpy are enough for the others."""


@cache
def places() -> dict[str, str]:
    """Return in which module each public name is, a module of the package itself in ``"contraport"``.

    >>> places()["nt_xent"], places()["plots"]
    ('contraport.catalog.objectives', 'contraport')
    """
    listed = ast.parse(files("contraport").joinpath("__init__.pyi").read_text("utf-8")).body
    imports = [line for line in listed if isinstance(line, ast.ImportFrom)]
    return {alias.name: line.module for line in imports for alias in line.names if line.module is not None}


def names() -> list[str]:
    """Return all public names."""
    return sorted(places())


def attribute(name: str) -> Any:
    """Return what has a public name; or a room, such as `contraport.data`, which no `import` need have named.

    Raises:
        AttributeError: nothing has it; the nearest is offered.
        UsageError: a package that it needs is not installed.
    """
    place = places().get(name)
    if place is None and not name.startswith("_") and find_spec(f"contraport.{name}") is not None:
        place = "contraport"
    if place is None:
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"module 'contraport' has no attribute {name!r}{hint}")
    if place == "contraport":
        return import_module(f"contraport.{name}")
    with needing(EXTRAS.get(place.split(".")[1], ""), f"contraport.{name}"):
        return getattr(import_module(place), name)
