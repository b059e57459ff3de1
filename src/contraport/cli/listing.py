"""`contraport list`, which prints tables of named objectives, recipes, data and more."""

from __future__ import annotations

import math
import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from contraport._utils.formatting import format_flags
from contraport.catalog import OBJECTIVES, RECIPES, list_datasets, list_encoders
from contraport.catalog.recommendations import list_use_case_names
from contraport.cli.utility_command_options import LIST_COMMAND_SPEC, ListOptions
from contraport.metrics import METRICS
from contraport.options import warn_renamed


def _build_rows(what: str) -> list[dict[str, str]]:
    """Build a table row per list entry, as a dictionary with headings as keys."""
    match what:
        case "recipes":
            return [
                {
                    "name": name,
                    "summary": _replace_loss_arguments(recipe.summary),
                    "options": format_flags(recipe.settings),
                }
                for name, recipe in RECIPES.items()
            ]
        case "objectives":
            return [
                {
                    "name": method.name,
                    "method": _replace_loss_arguments(method.summary),
                    "when to use it": "; ".join(list_use_case_names(method.name)),
                    "reference": method.citation,
                }
                for method in OBJECTIVES.values()
            ]
        case "encoders":
            return [{"name": encoder.name, "summary": encoder.description} for encoder in list_encoders()]
        case "data":
            return [
                {"name": dataset.name, "summary": dataset.description, "location": dataset.location_description}
                for dataset in list_datasets()
            ]
        case "metrics":
            rows = []
            for one in METRICS.values():
                direction = "" if one.better_direction == "neither" else f", {one.better_direction} is better"
                condition = "" if one.is_default else "; only if named"
                group_and_unit = f"{one.group}: {one.unit}{direction}{condition}"
                name = one.key.replace("{}", "k")
                rows.append({"name": name, "summary": one.summary, "group and unit": group_and_unit})
            return rows
    # Here, not above: the other lists need no torch.
    from contraport.comparison.grid_builder import load_suite, suite_paths_by_name

    return [
        {
            "name": name,
            "summary": suite.get("title", ""),
            "source": suite.get("source", ""),
            "data": ", ".join(Path(str(data)).name for data in suite.get("data", ())),
        }
        for name, suite in ((name, load_suite(path)) for name, path in suite_paths_by_name().items())
    ]


def _replace_loss_arguments(summary: str) -> str:
    """Replace loss arguments such as ``weights=`` in an objective's summary by options.

    >>> _replace_loss_arguments("CoSENT (``weights=``)."), _replace_loss_arguments("SogCLR (``ids=``).")
    ('CoSENT (--sample_weight).', 'SogCLR.')
    """
    summary = summary.replace(" (``ids=``)", "").replace("``labels=``", "labels")
    return summary.replace("``features=``", "--teacher").replace("``weights=``", "--sample_weight")


_NEXT_COMMAND_BY_LIST_NAME = {
    "recipes": "contraport train --recipe NAME --data DATA",
    "objectives": "contraport train --objective NAME --data DATA",
    "encoders": "contraport train --encoder NAME --data DATA",
    "data": "contraport train --data NAME",
    "metrics": "contraport evaluate RUN --metrics NAME (recall@5 for recall@k)",
    "suites": "contraport compare --suite NAME --quick",
}


class _NameTable(list[Mapping[str, str]]):
    """Table of names and descriptions, with an example command."""

    def __init__(self, rows: Iterable[Mapping[str, str]], next_command: str) -> None:
        super().__init__(rows)
        self.next_command = next_command


@LIST_COMMAND_SPEC.with_option_parameters
def list_names(arguments: dict[str, Any]) -> _NameTable:
    """List the named objectives, recipes, encoders, data sets, metrics or suites.

    Raises:
        UsageError: there is no such list.
    """
    what = ListOptions(**arguments).what
    if what == "measures":
        warn_renamed("list measures", "list metrics")
        what = "metrics"
    return _NameTable(_build_rows(what), _NEXT_COMMAND_BY_LIST_NAME[what])


def print_names(rows: _NameTable) -> None:
    """Print a table of names and descriptions as plain text.

    It needs no optional package.
    """
    shown = [
        {key: _shorten_citation(cell) if key == "reference" else cell for key, cell in row.items()} for row in rows
    ]
    headings = list(shown[0])
    lengths = [[len(row[heading]) for row in shown] for heading in headings]
    widths = [min(max(map(len, [headings[0], *(row["name"] for row in shown)])), _MAX_NAME_CHARS)]
    space = max(80, min(shutil.get_terminal_size().columns, _MAX_TABLE_CHARS)) - widths[0] - 2 * (len(headings) - 1)
    # By the root of the mean length: in proportion to it, short columns would be too narrow for their words.
    weights = [max(math.sqrt(sum(column) / len(column)), 3) for column in lengths[1:]]
    widths += [max(int(space * weight / sum(weights)), 12) for weight in weights[:-1]]
    widths.append(space - sum(widths[1:]))
    # Options and data sets are last: each is copied as a whole, so the widest other column makes room for the longest.
    lacking = max(len(word) for row in shown for word in row[headings[-1]].split()) - widths[-1]
    if lacking > 0 and len(widths) > 2:
        widths[widths.index(max(widths[1:-1]), 1)] -= lacking
        widths[-1] += lacking
    for cells in [headings, ["-" * width for width in widths], *(list(row.values()) for row in shown)]:
        wrapped = [
            textwrap.wrap(cell.replace("``", "`"), width, break_on_hyphens=False)
            for cell, width in zip(cells, widths, strict=True)
        ]
        for parts in zip_longest(*wrapped, fillvalue=""):
            print("  ".join(f"{part:{width}}" for part, width in zip(parts, widths, strict=True)).rstrip())
    print(f"\nnext: {rows.next_command}")


_MAX_NAME_CHARS, _MAX_TABLE_CHARS = 24, 120  # widths in characters of the name column and of the whole table


def _shorten_citation(citation: str) -> str:
    """Shorten a citation to its authors and year.

    >>> _shorten_citation("Chen, Kornblith, Norouzi and Hinton (2020), A"), _shorten_citation("Tian (2022), On")
    ('Chen et al. (2020)', 'Tian (2022)')
    """
    match = re.match(r"(.+?) \((\d{4})\)", citation)
    if match is None:
        return citation
    first, *others = re.split(r", | and | et al\.", match[1])
    return f"{match[1] if len(others) == 1 and others[0] else first + (' et al.' if others else '')} ({match[2]})"
