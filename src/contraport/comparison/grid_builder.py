"""From what is asked, and a suite's file, to what is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from contraport._utils.formatting import format_options
from contraport.comparison.config import READING, CompareOptions
from contraport.comparison.grid import Claim, Column, Given, Grid, Row
from contraport.comparison.grid_parsing import (
    check_options,
    expand_over,
    parse_row,
    parse_setting,
    saved_entries,
    split_entries,
)
from contraport.comparison.seed_results import metrics_in_order
from contraport.comparison.suites import SUITE_KEYS, load_suite, parse_claim
from contraport.errors import check, unknown_name_error
from contraport.options import replace_deprecated_names
from contraport.training.config import OPTIONS


def build_grid(given: Given) -> Grid:
    """Return what is compared.

    Raises:
        UsageError: there is no such suite, it is not what it should be, or nothing is to be compared.
    """
    suite = given.get("suite")
    saved = {} if suite is None else load_suite(suite)
    check(suite is not None or not given.get("quick"), "quick: belongs to a suite; expected --suite with it.")
    smaller = saved.get("quick", {}) if given.get("quick") else {}
    check(not given.get("quick") or bool(smaller), f"quick: the suite {suite} has no smaller grid.")
    values = {**saved, **smaller}
    asked = CompareOptions(**{name: value for name, value in values.items() if name not in SUITE_KEYS} | dict(given))
    check(len(asked.data) > 0, "data: expected one or more, got none.")
    own_rows, own_columns = (saved_entries(key, saved, smaller) for key in ("objectives", "settings"))
    rows = expand_over(
        tuple(parse_row(value, own_rows) for value in split_entries(asked.objectives, own_rows)), asked.over
    )
    check(len(rows) > 0, "objectives: expected one or more, got none.")
    settings = [parse_setting(value, own_columns) for value in split_entries(asked.settings, own_columns)]
    ends = Counter(Path(data).name for data in asked.data)
    columns = tuple(
        Column(str(data), Path(data).name if ends[Path(data).name] == 1 else str(data), name, options)
        for data in asked.data
        for name, options in settings
    )
    for argument, names in (("objectives", [row.name for row in rows]), ("settings", [c.name for c in columns])):
        repeated = sorted({name for name in names if names.count(name) > 1})
        check(not repeated, f"{argument}: expected each once, got {', '.join(repeated)} more often.")
    baseline = asked.baseline or rows[0].name
    if baseline not in [row.name for row in rows]:
        raise unknown_name_error("baseline", baseline, [row.name for row in rows])
    measure = metrics_in_order(asked.metrics)[0]
    check(
        not asked.tune or measure.better != "neither",
        f"tune: settings are chosen by the first measure, and of {measure.key} neither direction is better; expected "
        "another one first, such as knn.",
    )
    own = {name: getattr(asked, name) for name in ("epochs", "encoder")}
    own |= {name: getattr(asked, name) for name, known in READING.items() if known.scope == "run"}
    defaults = {name: known.default for name, known in READING.items()}
    common = replace_deprecated_names(OPTIONS, asked.train or {}) | {
        name: value for name, value in own.items() if value != defaults.get(name)
    }
    check_options("train", common)
    _check_same_items(rows, common, [column.options for column in columns])
    claims = tuple(parse_claim(value) for value in values.get("claims", ()))
    _check_claims(claims, rows, columns, whole=not given.keys() & {"objectives", "settings", "over", "quick"})
    title = str(values.get("title", f"{len(rows)} objectives compared"))
    return Grid(title, rows, columns, baseline, common, claims, asked, given)


_OF_TEST_ITEMS = ("test_items", "test_fraction", "corrupt", "domains")
"""The options of a training that say which items it is judged on."""


def _check_same_items(rows: Sequence[Row], common: Given, columns: Sequence[Given]) -> None:
    """Raise `UsageError` where a row asks for test items of its own: those of a column are the same for all its rows.

    How many items it learns from it may ask, where `test_items` says for all how many it is judged on.
    """
    for row in rows:
        for key in _OF_TEST_ITEMS:
            check(
                key not in row.options,
                f"objectives: {row.name}: {key} says what is judged on, which is the same for all rows; expected it in "
                f"the settings or, for all, in train, got {row.options.get(key)!r}.",
            )
        fixed = all("test_items" in common or "test_items" in column for column in columns)
        check(
            fixed or row.options.get("max_items") in (None, common.get("max_items")),
            f"objectives: {row.name}: with {format_options(max_items=row.options.get('max_items'))} it would be "
            f"judged on other "
            f"test items than the rest; expected {format_options(test_items=10_000)} for all beside it.",
        )


def _check_claims(claims: Sequence[Claim], rows: Sequence[Row], columns: Sequence[Column], *, whole: bool) -> None:
    """Raise `UsageError` where a claim names a measure, or of the whole grid a row or a setting, that there is not."""
    names, settings = [row.name for row in rows], [column.setting for column in columns]
    for claim in claims:
        if claim.measure is not None:
            metrics_in_order([claim.measure])
        asked = [
            *((name, names) for name in (*claim.better, claim.than)),
            *((name, settings) for name in claim.settings),
        ]
        for name, known in asked if whole else ():
            if name not in known:
                raise unknown_name_error(f"claims: {claim.says}", name, known)
