"""Suites: predefined comparisons stored in YAML files, with claims about their results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import contraport
from contraport.comparison.config import COMPARE
from contraport.comparison.grid import Claim
from contraport.errors import check, unknown_name_error, unreadable_error
from contraport.options import replace_deprecated_names

SUITE_KEYS = ("title", "source", "claims", "quick", "not_run")
"""Keys of a suite that are not options of `compare`."""


def suites_folder() -> Path:
    """Return the folder of the suite files: in the package, or in the source tree of an editable installation."""
    package = Path(contraport.__file__).parent
    inside = package / "suites"
    return inside if inside.is_dir() else package.parents[1] / "benchmarks" / "suites"


def find_suite_paths() -> dict[str, Path]:
    """Return the path of each suite file, by suite name."""
    return {file.stem: file for file in sorted(suites_folder().glob("*.yaml"))}


def load_suite(suite: str | Path) -> dict[str, Any]:
    """Load a suite file, given its path or the name of a suite, as a dictionary.

    Raises:
        UsageError: unknown suite, missing file, or invalid contents.
    """
    path = Path(suite)
    if path.suffix not in (".yaml", ".yml"):
        suites = find_suite_paths()
        if str(suite) not in suites:
            raise unknown_name_error("suite", suite, suites)
        path = suites[str(suite)]
    check(path.is_file(), f"suite: file {path} does not exist.", "not_found")
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise unreadable_error(f"suite: {path}", "YAML", error) from error
    check(isinstance(values, dict), f"suite: {path} must contain keys with values.", "not_a_mapping")
    values = replace_deprecated_names(COMPARE.options, values)
    if isinstance(values.get("quick"), dict):
        values["quick"] = replace_deprecated_names(COMPARE.options, values["quick"])
    keys = [*(name for name in COMPARE.options if name not in ("suite", "out")), *SUITE_KEYS]
    for key in [*values, *values.get("quick", {})]:
        if key not in keys:
            raise unknown_name_error(f"suite: {path}: key", key, keys)
    return values


def parse_claim(value: Any) -> Claim:
    """Parse a claim of a suite from a mapping.

    Raises:
        UsageError: missing or unknown keys, or wrong values.
    """
    is_claim = isinstance(value, Mapping) and {"says", "better", "than"} <= value.keys()
    check(is_claim, f"claims: must have the keys says, better and than, got {value!r}.", "missing_key")
    for key in value:
        if key not in Claim._fields:
            raise unknown_name_error("claims: key", key, Claim._fields)
    lists = {key: tuple(value[key]) for key in ("better", "settings") if key in value}
    has_lists = not any(isinstance(value[key], str) for key in lists)
    check(has_lists, f"claims: better and settings must be lists of names, got {value!r}.", "not_a_list")
    each = value.get("each", False)
    check(isinstance(each, bool), f"claims: each must be true or false, got {each!r}.", "not_a_bool")
    return Claim(**{**value, **lists})
