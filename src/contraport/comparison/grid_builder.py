"""Builds the grid of a comparison from its options and a suite file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from contraport._utils.formatting import format_options
from contraport.comparison.config import DATA_OPTIONS, CompareOptions
from contraport.comparison.grid import Claim, Column, Grid, OptionMap, Row
from contraport.comparison.grid_parsing import (
    check_options,
    collect_named_entries,
    expand_over,
    parse_column,
    parse_row,
    split_entries,
)
from contraport.comparison.suites import SUITE_KEYS, load_suite, parse_claim
from contraport.errors import check, unknown_name_error
from contraport.metrics import select_metrics_keeping_order
from contraport.options import replace_deprecated_names
from contraport.training.config import OPTIONS


def build_grid(explicit: OptionMap) -> Grid:
    """Build the grid of a comparison from explicit options, which override those of the suite.

    Raises:
        UsageError: unknown or invalid suite, wrong options, or an empty grid.
    """
    suite = explicit.get("suite")
    is_quick = bool(explicit.get("quick"))
    saved = {} if suite is None else load_suite(suite)
    check(suite is not None or not is_quick, "quick: requires --suite.", "missing_suite")
    quick = saved.get("quick", {}) if is_quick else {}
    check(not is_quick or bool(quick), f"quick: the suite {suite} has no smaller grid.", "unavailable")
    values = {**saved, **quick}
    options = CompareOptions(**{key: value for key, value in values.items() if key not in SUITE_KEYS} | dict(explicit))
    check(len(options.data) > 0, "data: must name at least one dataset, got none.", "missing")
    own_rows, own_columns = (collect_named_entries(key, saved, quick) for key in ("objectives", "settings"))
    parsed = tuple(parse_row(value, own_rows) for value in split_entries(options.objectives, own_rows))
    rows = expand_over(parsed, options.over)
    check(len(rows) > 0, "objectives: must name at least one objective, got none.", "missing")
    settings = [parse_column(value, own_columns) for value in split_entries(options.settings, own_columns)]
    ends = Counter(Path(data).name for data in options.data)
    columns = tuple(
        Column(str(data), Path(data).name if ends[Path(data).name] == 1 else str(data), name, column_options)
        for data in options.data
        for name, column_options in settings
    )
    names = [row.name for row in rows]
    for argument, entries in (("objectives", names), ("settings", [column.name for column in columns])):
        repeated = sorted({name for name in entries if entries.count(name) > 1})
        check(not repeated, f"{argument}: names the same entry twice: {', '.join(repeated)}.", "repeated")
    baseline = options.baseline or names[0]
    if baseline not in names:
        raise unknown_name_error("baseline", baseline, names)
    metric = select_metrics_keeping_order(options.metrics)[0]
    check(
        not options.tune or metric.better_direction != "neither",
        f"tune: the first metric selects the settings, but neither direction of {metric.key} is better. Name another "
        "one first, such as knn.",
        "no_direction",
    )
    shared = {name: getattr(options, name) for name in ("epochs", "encoder")}
    shared |= {name: getattr(options, name) for name, one in DATA_OPTIONS.items() if one.lifetime == "run"}
    defaults = {name: one.default for name, one in DATA_OPTIONS.items()}
    changed = {name: value for name, value in shared.items() if value != defaults.get(name)}
    common = replace_deprecated_names(OPTIONS, options.train or {}) | changed
    check_options("train", common)
    _check_same_test_items(rows, common, [column.options for column in columns])
    claims = tuple(parse_claim(value) for value in values.get("claims", ()))
    is_whole = not explicit.keys() & {"objectives", "settings", "over", "quick"}
    _check_claims(claims, rows, columns, check_names=is_whole)
    title = str(values.get("title", f"{len(rows)} objectives compared"))
    return Grid(title, rows, columns, baseline, common, claims, options, explicit)


_TEST_ITEM_OPTIONS = ("test_items", "test_fraction", "corrupt", "domains")
"""Options of a training that determine its test items."""


def _check_same_test_items(rows: Sequence[Row], common: OptionMap, columns: Sequence[OptionMap]) -> None:
    """Raise `UsageError` if a row would have other test items than the rest of its column.

    A row may set the number of training items if `test_items` fixes the number of test items for all.
    """
    for row in rows:
        for key in _TEST_ITEM_OPTIONS:
            check(
                key not in row.options,
                f"objectives: {row.name} sets {key}={row.options.get(key)!r}, but all rows must have the same test "
                "items. Set it in settings, or in train for all.",
                "test_items",
            )
        is_fixed = all("test_items" in common or "test_items" in column for column in columns)
        check(
            is_fixed or row.options.get("max_items") in (None, common.get("max_items")),
            f"objectives: {row.name} would have other test items than the rest, because of "
            f"{format_options(max_items=row.options.get('max_items'))}. Set "
            f"{format_options(test_items=10_000)} for all.",
            "test_items",
        )


def _check_claims(
    claims: Sequence[Claim], rows: Sequence[Row], columns: Sequence[Column], *, check_names: bool
) -> None:
    """Raise `UsageError` for a claim about an unknown metric or, with `check_names`, an unknown row or setting."""
    names, settings = [row.name for row in rows], [column.setting_name for column in columns]
    for claim in claims:
        if claim.measure is not None:
            select_metrics_keeping_order([claim.measure])
        if check_names:
            for known, claimed in ((names, (*claim.better, claim.than)), (settings, claim.settings)):
                for name in claimed:
                    if name not in known:
                        raise unknown_name_error(f"claims: {claim.says}", name, known)
