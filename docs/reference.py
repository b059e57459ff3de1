"""Writes the reference of the site: public names with docstrings, options of commands, and recipes.

Sphinx calls `write` before it reads the pages (conf.py). What it writes is not kept under version control.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import contraport
from contraport._utils.formatting import format_flags
from contraport.catalog import OBJECTIVES, RECIPES, list_datasets, list_encoders
from contraport.cli.commands import get_command, summaries_by_group
from contraport.options import Option, describe_type

PARTS = {
    "Layouts: which pairs are compared": "contraport.objectives.layouts",
    "Layouts that change another layout": "contraport.objectives.layout_wrappers",
    "Kernels: how similar two embeddings are": "contraport.engine.kernels",
    "Constraints: which plans are allowed": "contraport.objectives.constraints",
    "Targets: which plan is wanted": "contraport.objectives.targets",
    "Divergences: how far one is from the other": "contraport.objectives.divergences",
}
"""The five questions, and the module with the answers to each."""

ROOMS = {
    "plots": (
        "Figures",
        ["barycentric_maps_1d", "couplings", "curves", "embedding", "nearest_items", "plan", "spectrum"],
    ),
    "theory": ("The theory as functions", None),
    "integrations": ("Adapters for other libraries", None),
    "data": ("Data", ["load", "from_arrays", "from_torch", "from_stream", "build_loader", "Dataset", "Batch", "Views"]),
    "training": ("Training, step by step", ["load_failed_step"]),
    "metrics": ("Metrics", ["register_metric", "Metric"]),
    "engine": ("The engine", ["backend", "precision", "explain_backend"]),
}
"""Other subpackages of the reference: title and names; None means all that the subpackage lists."""


def escape_markup(text: str) -> str:
    """Escape bars, stars and underscores in a line of a docstring, except in code.

    >>> print(escape_markup("|x| of num_features, ``audio_*`` and `Gibbs`"))
    \\|x\\| of num\\_features, ``audio_*`` and `Gibbs`
    """
    parts = re.split(r"(``.*?``|`[^`]*`)", text)
    parts[::2] = [re.sub(r"([|*_])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def write(folder: Path) -> None:
    """Write all pages of the reference to a folder.

    Raises:
        ValueError: a public name of `contraport` is on no page.
    """
    folder.mkdir(exist_ok=True)
    documented: set[str] = set()
    pages = {
        "verbs.rst": list(command_functions(documented)),
        "methods.rst": list(methods(documented)),
        "parts.rst": list(parts(documented)),
        "estimators.rst": list(estimators(documented)),
        "others.rst": list(others(documented)),
        "rooms.rst": subpackages(),
        "commands.md": commands(),
        "recipes.md": recipes(),
    }
    if (
        missing := set(contraport.__all__)
        - documented
        - {"__version__", "engine", "integrations", "objectives", "plots"}
    ):
        raise ValueError(f"reference: expected every public name on a page, found none for {sorted(missing)}.")
    for name, lines in pages.items():
        text = "\n".join(lines) + "\n"
        page = folder / name
        if not page.exists() or page.read_text() != text:  # Sphinx builds only changed pages again
            page.write_text(text)
    (folder / "index.md").write_text(INDEX)


INDEX = """# Reference

```{toctree}
:maxdepth: 1

commands
recipes
verbs
methods
parts
estimators
others
rooms
```
"""


def commands() -> Iterator[str]:
    """Return the page of all commands with all options."""
    yield from [
        "# Commands",
        "",
        "Every option is also a keyword of the Python function of the same name, and a key of the YAML file of",
        "`--config`. `contraport COMMAND --print_config` prints their resolved values. Every command that prints",
        "results takes `--json`, which prints them as JSON.",
        "",
    ]
    for name, summary in _command_sections().items():
        verb = get_command(name)
        yield from [f"## contraport {name}", "", summary, ""]
        if verb.details:
            yield from [inspect.cleandoc(verb.details), ""]
        if verb.examples:
            yield from ["```sh", *verb.examples, "```", ""]
        yield from _options(verb.options_by_name)


def _command_sections() -> dict[str, str]:
    return {name: summary for names in summaries_by_group().values() for name, summary in names.items()}


def _options(options: Mapping[str, Option]) -> Iterator[str]:
    group = None
    for name, one in options.items():
        if group is None or one.group != group:
            group = one.group
            yield from [
                "",
                *([f"**{group}**", ""] if group else []),
                "| option | takes | default | description |",
                "|---|---|---|---|",
            ]
        flag = f"`{name.upper()}`" if one.is_cli_positional else f"`--{name}`"
        default = "" if one.required or one.default in (None, ()) else f"`{str(one.default).lower()}`"
        yield f"| {flag} | {_cell(describe_type(one.type))} | {default} | {_cell(one.help)} |"
    yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def recipes() -> Iterator[str]:
    """Return the page of all recipes, encoders and named data sets."""
    yield from ["# Recipes, encoders, data", "", "Names that `--recipe`, `--encoder` and `--data` accept.", ""]
    yield from ["## Recipes", "", "| recipe | description | settings | source |", "|---|---|---|---|"]
    for name, recipe in RECIPES.items():
        yield f"| `{name}` | {_cell(recipe.summary)} | `{format_flags(recipe.settings)}` | {_cell(recipe.citation)} |"
    yield from ["", "## Encoders", "", "| encoder | description |", "|---|---|"]
    for encoder in list_encoders():
        yield f"| `{encoder.name}` | {_cell(encoder.description)} |"
    yield from ["", "## Data", "", "| data | description | location |", "|---|---|---|"]
    for source in list_datasets():
        yield f"| `{source.name}` | {_cell(source.description)} | {_cell(source.location_description)} |"


def command_functions(documented: set[str]) -> Iterator[str]:
    """Return the page of the commands as functions."""
    names = [name for name in _command_sections() if name in contraport.__all__]
    yield from _heading("Commands in Python")
    yield from ["The commands as functions with the same keywords.", ""]
    yield from _documented("contraport", names, documented)


def methods(documented: set[str]) -> Iterator[str]:
    """Return the page of the named objectives as functions."""
    yield from _heading("Objectives by name")
    yield from ["A named method is a recipe that returns a loss. Their formulas: :doc:`/methods`.", ""]
    named = [recipe.build.__name__ for recipe in OBJECTIVES.values()]
    yield from _documented("contraport", [*dict.fromkeys(named), "objective", "list_objectives"], documented)


def parts(documented: set[str]) -> Iterator[str]:
    """Return the page of the parts of an objective: layouts, kernels, constraints, targets, divergences."""
    yield from _heading("Parts of an objective")
    yield from _documented("contraport", ["Objective", "SumLoss"], documented)
    for title, module in PARTS.items():
        yield from _heading(title, "-")
        yield from _documented("contraport", _public(import_module(module)), documented)


def estimators(documented: set[str]) -> Iterator[str]:
    """Return the page of the estimators for scikit-learn."""
    yield from _heading("Estimators")
    yield from _documented("contraport", ["ContrastiveEncoder", "SNE", "TSNE", "InverseOT"], documented)


def others(documented: set[str]) -> Iterator[str]:
    """Return the page of all other public names of `contraport`."""
    yield from _heading("Other names")
    rest = set(contraport.__all__) - documented - {"__version__", "engine", "integrations", "objectives", "plots"}
    yield from _documented("contraport", sorted(rest, key=str.lower), documented)


def subpackages() -> Iterator[str]:
    """Return the page of the public names of subpackages."""
    yield from _heading("Other modules")
    for room, (title, names) in ROOMS.items():
        module = import_module(f"contraport.{room}")
        yield from _heading(f"{title}: contraport.{room}", "-")
        yield from _documented(module.__name__, names or module.__all__, set())


def _public(module: ModuleType) -> list[str]:
    """Return the public names of `contraport` that are defined in a module or its submodules."""
    public = (name for name in contraport.__all__ if not name.startswith("_"))
    return [name for name in public if getattr(getattr(contraport, name), "__module__", "").startswith(module.__name__)]


def _heading(title: str, line: str = "=") -> list[str]:
    return [title, line * len(title), ""]


def _documented(module: str, names: Iterable[str], documented: set[str]) -> Iterator[str]:
    for name in names:
        if name in documented:
            continue
        documented.add(name)
        thing = getattr(import_module(module), name)
        kind = "autoclass" if isinstance(thing, type) else "autofunction" if callable(thing) else "autodata"
        yield f".. {kind}:: {module}.{name}"
        if kind == "autoclass":
            yield "   :members:"
        yield ""
