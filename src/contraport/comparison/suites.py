"""Suites: comparisons that are kept in a file, with what is claimed of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import contraport
from contraport.comparison.config import COMPARE
from contraport.comparison.grid import Claim
from contraport.errors import UsageError, check, unknown_name_error, unreadable_error
from contraport.options import replace_deprecated_names

SUITE_KEYS = ("title", "claims", "quick", "not_run")
"""What a suite says that is no option of the verb."""


def suites_folder() -> Path:
    """Return where the suites are: in the package, or in the project that it is installed from."""
    package = Path(contraport.__file__).parent
    inside = package / "suites"
    return inside if inside.is_dir() else package.parents[1] / "benchmarks" / "suites"


def list_suites() -> dict[str, Path]:
    """Return the files of the suites by their names."""
    return {file.stem: file for file in sorted(suites_folder().glob("*.yaml"))}


def load_suite(suite: str | Path) -> dict[str, Any]:
    """Return what a suite's file says.

    Raises:
        UsageError: there is no such suite, or it is not what it should be.
    """
    path = Path(suite)
    if path.suffix not in (".yaml", ".yml"):
        known = list_suites()
        if str(suite) not in known:
            raise unknown_name_error("suite", suite, known)
        path = known[str(suite)]
    check(path.is_file(), f"suite: there is no file {path}.")
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise unreadable_error(f"suite: {path}", "YAML", error) from error
    check(isinstance(values, dict), f"suite: {path}: expected keys with values.")
    values = replace_deprecated_names(COMPARE.options, values)
    if isinstance(values.get("quick"), dict):
        values["quick"] = replace_deprecated_names(COMPARE.options, values["quick"])
    known_keys = [*(name for name in COMPARE.options if name not in ("suite", "out")), *SUITE_KEYS]
    for key in [*values, *values.get("quick", {})]:
        if key not in known_keys:
            raise unknown_name_error(f"suite: {path}: key", key, known_keys)
    return values


def parse_claim(value: Any) -> Claim:
    """Return the claim that an entry of a suite's file is.

    Raises:
        UsageError: it is none.
    """
    good = isinstance(value, Mapping) and {"says", "better", "than"} <= value.keys()
    check(good, f"claims: expected says, better and than, got {value!r}.")
    for key in value:
        if key not in Claim._fields:
            raise unknown_name_error("claims: key", key, Claim._fields)
    lists = {key: tuple(value[key]) for key in ("better", "settings") if key in value}
    if any(isinstance(value[key], str) for key in lists):
        raise UsageError(f"claims: expected lists of names, got {value!r}.")
    each = value.get("each", False)
    check(isinstance(each, bool), f"claims: each: expected true or false, got {each!r}.")
    return Claim(**{**value, **lists})
