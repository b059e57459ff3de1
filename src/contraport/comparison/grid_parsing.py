"""Rows and columns in words: an objective or a setting by its name, with settings of its own behind it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from contraport._utils.spec import parse_number_or_text, split_at_commas, strip_quotes
from contraport.catalog import OBJECTIVES, RECIPES
from contraport.catalog.augment_specs import AUGMENTS
from contraport.comparison.grid import Given, Row, merge_options
from contraport.errors import UsageError, check, unknown_name_error
from contraport.options import replace_deprecated_names
from contraport.training.config import OPTIONS

_NOT_CHOSEN = ("data", "seed", "out", "resume", "overwrite", "dry_run", "progress", "device", "root", "validation")


def saved_entries(key: str, *grids: Given) -> dict[str, Given]:
    """Return the rows or columns of saved grids that have a name of their own, by that name."""
    return {str(name): one for grid in grids for one in grid.get(key, ()) if isinstance(one, Mapping) for name in one}


def split_entries(values: Iterable[str | Given], saved: Mapping[str, Given]) -> list[str | Given]:
    """Return what stands between commas one by one; what has no colon before its ``=`` goes on with settings.

    A quoted value keeps its commas. The name of what a suite has saved stands for that.

    >>> split_entries(["info-nce,gca-uot:relaxation=0.2,temperature=0.1", "U(a, b)"], {"U(a, b)": {"U(a, b)": "iot"}})
    ['info-nce', 'gca-uot:relaxation=0.2,temperature=0.1', {'U(a, b)': 'iot'}]
    """
    found: list[str | Given] = []
    for value in values:
        if not isinstance(value, str) or value in saved:
            found.append(saved[value] if isinstance(value, str) else value)
            continue
        for place, part in enumerate(split_at_commas(value)):
            goes_on = place > 0 and "=" in part.partition(":")[0]
            if goes_on and isinstance(found[-1], str):
                found[-1] = f"{found[-1]},{part}"
            else:
                found.append(part.strip())
    return found


def parse_row(value: str | Given, saved: Given) -> Row:
    """Return the row that an entry is: an objective with its settings in words, or a name with options.

    Args:
        value: the entry.
        saved: the names of the rows that a suite has saved, which a mistake tells of too.

    Raises:
        UsageError: there is no such objective, or an option or setting is none.
    """
    if isinstance(value, str):
        return Row(value, _of_objective(value, saved))
    name, options = _named("objectives", value)
    if isinstance(options, str):
        return Row(name, _of_objective(options))
    return Row(name, _sorted_out(f"objectives: {name}", dict(options)))


def _named(argument: str, value: Given) -> tuple[str, Any]:
    good = isinstance(value, Mapping) and len(value) == 1
    check(good, f"{argument}: expected a name, or one name with its options, got {value!r}.")
    ((name, options),) = value.items()
    good = isinstance(options, str | Mapping)
    check(good, f"{argument}: {name}: expected options of contraport train, got {options!r}.")
    return str(name), options


def _of_objective(text: str, others: Iterable[str] = ()) -> dict[str, Any]:
    """Return the options that a name with settings after a colon stands for; `others` are known too, in other words.

    >>> _of_objective("gca-uot:relaxation=0.2,temperature=0.1")
    {'recipe': 'gca-uot', 'temperature': 0.1, 'objective_settings': {'relaxation': 0.2}}
    >>> _of_objective("gca-ince:target='domains:alpha=0.5,beta=0'")
    {'recipe': 'gca-ince', 'target': 'domains:alpha=0.5,beta=0'}
    """
    name, _, rest = text.partition(":")
    if name not in RECIPES and name not in OBJECTIVES:
        raise unknown_name_error("objectives", name, {*RECIPES, *OBJECTIVES, *others})
    options: dict[str, Any] = {"recipe" if name in RECIPES else "objective": name}
    parts = [part.partition("=") for part in split_at_commas(rest)]
    for key, equals, value in parts:
        check(bool(equals), f"objectives: expected {name}:setting=value, got {text!r}.")
        options[key] = _read(value)
    try:
        return _sorted_out(f"objectives: {name}", options)
    except UsageError as error:
        cut = next((f"{key}='{value},...'" for key, _, value in parts[:-1] if ":" in value), None)
        if cut is None:
            raise
        raise UsageError(f"{error} A value that has commas itself stands in quotes: {cut}.") from error


def _read(value: str) -> Any:
    """Return the number or truth value that a text is, or the text."""
    text = strip_quotes(value)
    return {"true": True, "false": False}.get(text, parse_number_or_text(text))


def _sorted_out(argument: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options of which those that training does not know are settings of the objective.

    Raises:
        UsageError: the objective does not know one either.
    """
    options = replace_deprecated_names(OPTIONS, options)
    top = {key: value for key, value in options.items() if key in OPTIONS}
    own = {key: value for key, value in options.items() if key not in OPTIONS}
    known = objective_parameters(top)
    for key in own:
        if key not in known:
            raise unknown_name_error(f"{argument}: setting", key, [*OPTIONS, *known])
    check_options(argument, top)
    return merge_options(top, {"objective_settings": own}) if own else top


def objective_parameters(options: Given) -> Mapping[str, inspect.Parameter]:
    """Return the settings that the objective of some options has, by name."""
    recipe = RECIPES.get(str(options.get("recipe")))
    name = options.get("objective", "nt-xent" if recipe is None else recipe.settings.get("objective"))
    return inspect.signature(OBJECTIVES[name].make).parameters if name in OBJECTIVES else {}


def check_options(argument: str, options: Given) -> None:
    """Raise `UsageError` where an option is none of a training, is the comparison's own, or has a wrong value."""
    for key, value in options.items():
        if key not in OPTIONS:
            raise unknown_name_error(argument, key, OPTIONS)
        check(key not in _NOT_CHOSEN, f"{argument}: {key} is the comparison's own, got {value!r}.")
        OPTIONS[key].validate(value)


def expand_over(rows: Sequence[Row], over: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows with each value of each option in turn."""
    found = tuple(rows)
    for text in over:
        key, equals, values = text.partition("=")
        check(bool(equals and values), f"over: expected option=value,value, got {text!r}.")
        found = tuple(
            Row(f"{row.name}, {key} {value}", merge_options(row.options, _with(row, key, value)))
            for row in found
            for value in map(_read, split_at_commas(values))
        )
    return found


def _with(row: Row, key: str, value: Any) -> dict[str, Any]:
    basis = {key: row.options[key] for key in ("recipe", "objective") if key in row.options}
    return _sorted_out(f"over: {row.name}", {**basis, key: value})


_OPTION_OF = {
    "corrupt": ("corrupt", "noise:3"),
    "mismatched": ("mismatch", "0.2"),
    "domains": ("domains", "style"),
    "imbalanced": ("imbalance", "100"),
}
"""Beside random changes, the words of a setting: which option of `contraport.train` each is, and its usual value."""

_SETTINGS = ("plain", *AUGMENTS, *_OPTION_OF)
_JOIN = re.compile(rf"\+|-(?={'|'.join(_SETTINGS)})")


def parse_setting(value: str | Given, others: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return the name of a column, and what it means: settings joined by ``+``, or by ``-`` as papers write them.

    >>> parse_setting("strong+mismatched:0.2")
    ('strong+mismatched:0.2', {'augment': 'strong', 'mismatch': 0.2})
    >>> parse_setting("corrupt-strong")
    ('corrupt+strong', {'corrupt': 'noise:3', 'augment': 'strong'})
    """
    if not isinstance(value, str):
        name, options = _named("settings", value)
        if isinstance(options, str):
            return name, parse_setting(options)[1]
        options = replace_deprecated_names(OPTIONS, options)
        check_options(f"settings: {name}", options)
        return name, options
    options = {}
    parts = _JOIN.split(value)
    for part in parts:
        name, _, rest = part.partition(":")
        if name not in _SETTINGS:
            raise unknown_name_error("settings", name, {*_SETTINGS, *others})
        if name in AUGMENTS:
            options["augment"] = part
        elif name != "plain":
            option, default = _OPTION_OF[name]
            options[option] = _read(rest or default)
    check_options(f"settings: {value}", options)
    return "+".join(parts), options
