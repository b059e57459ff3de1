"""Builder of a comparison's grid from its options and its suite (a YAML file)."""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

import contraport
from contraport._utils.formatting import format_keyword_or_flag, format_options
from contraport._utils.spec_parser import parse_setting_value, split_at_outer_commas, strip_quotes
from contraport.catalog import OBJECTIVES, RECIPES
from contraport.catalog.data_option_parsers import AUGMENT_NAMES
from contraport.catalog.objectives import OBJECTIVE_FROM_PARTS, get_objective_entry
from contraport.comparison.command_options import COMPARE_COMMAND_SPEC, CompareOptions
from contraport.comparison.grid import Claim, Column, Grid, OptionMap, Row, merge_train_options
from contraport.errors import UsageError, check, check_name, rename_argument, unknown_name_error, unreadable_error
from contraport.metrics import select_metrics_keeping_order
from contraport.options import get_declared_options, replace_deprecated_options
from contraport.training.config import TRAIN_OPTIONS, DataPreparationSettings

SUITE_ONLY_KEYS = ("title", "source", "claims", "quick", "not_run")
"""Keys of a suite that are not options of `compare`."""

CLAIM_FIELD_BY_KEY = dict(zip(("says", "better", "than", "settings", "measure", "each"), Claim._fields, strict=True))
"""Fields of `Claim` by their keys in the file of a suite."""


def build_grid(explicit_options: OptionMap) -> Grid:
    """Build a comparison's grid of runs, with explicit options overriding the suite file.

    Raises:
        UsageError: unknown or invalid suite, wrong options, or an empty grid.
    """
    suite = explicit_options.get("suite")
    is_quick = bool(explicit_options.get("quick"))
    suite_options = {} if suite is None else load_suite(suite)
    check(suite is not None or not is_quick, f"quick: requires {format_keyword_or_flag('suite')}.", "missing_suite")
    quick = suite_options.get("quick", {}) if is_quick else {}
    check(not is_quick or bool(quick), f"quick: the suite {suite} has no smaller grid.", "unavailable")
    values = {**suite_options, **quick}
    options = CompareOptions(
        **{key: value for key, value in values.items() if key not in SUITE_ONLY_KEYS} | dict(explicit_options)
    )
    check(len(options.data) > 0, "data: required, not given. Name one or several datasets.", "missing")
    suite_rows = suite_entries_by_name("objectives", suite_options, quick)
    suite_settings = suite_entries_by_name("settings", suite_options, quick)
    parsed = tuple(parse_row(value, suite_rows) for value in split_or_look_up_entries(options.objectives, suite_rows))
    rows = copy_rows_per_option_combination(parsed, options.over)
    check(len(rows) > 0, "objectives: required, not given. Name one or several objectives.", "missing")
    setting_entries = split_or_look_up_entries(options.settings, suite_settings)
    settings = [parse_column_setting(value, suite_settings) for value in setting_entries]
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
    check_name("baseline", baseline, names)
    for metric in select_metrics_keeping_order(options.metrics)[:1] if options.tune else ():
        check(
            metric.better_direction != "neither",
            f"tune: the first metric selects the settings, but neither direction of {metric.key} is better. Name "
            "another one first, such as knn.",
            "no_direction",
        )
    shared = {name: getattr(options, name) for name in ("epochs", "encoder")}
    data_options = get_declared_options(DataPreparationSettings)
    shared |= {name: getattr(options, name) for name, one in data_options.items() if one.lifetime == "run"}
    defaults = {name: one.default for name, one in data_options.items()}
    changed = {name: value for name, value in shared.items() if value != defaults.get(name)}
    common = replace_deprecated_options(TRAIN_OPTIONS, options.train or {}) | changed
    check_train_options("train", common)
    _check_rows_share_test_set(rows, common, [column.options for column in columns])
    claims = tuple(parse_claim(value) for value in values.get("claims", ()))
    is_whole = not explicit_options.keys() & {"objectives", "settings", "over", "quick"}
    _check_names_in_claims(claims, rows, columns, metrics_only=not is_whole)
    title = str(values.get("title", f"{len(rows)} objectives compared"))
    return Grid(title, rows, columns, baseline, common, claims, options, explicit_options)


def _check_rows_share_test_set(rows: Sequence[Row], common_options: OptionMap, column_options: list[OptionMap]) -> None:
    """Raise `UsageError` if the options of a comparison row change the test items.

    A row may set the number of training items if `test_items` fixes the number of test items for all.
    """
    for row in rows:
        for key in ("test_items", "test_fraction", "corrupt", "domains"):
            check(
                key not in row.options,
                f"objectives: {row.name} sets {key}={row.options.get(key)!r}, but all rows must have the same test "
                "items. Set it in settings, or in train for all.",
                "test_items",
            )
        is_fixed = all("test_items" in common_options or "test_items" in column for column in column_options)
        check(
            is_fixed or row.options.get("max_items") in (None, common_options.get("max_items")),
            f"objectives: {row.name} would have other test items than the rest, because of "
            f"{format_options(max_items=row.options.get('max_items'))}. Set "
            f"{format_options(test_items=10_000)} for all.",
            "test_items",
        )


def _check_names_in_claims(
    claims: Sequence[Claim], rows: Sequence[Row], columns: Sequence[Column], *, metrics_only: bool
) -> None:
    """Raise `UsageError` if a benchmark claim names an unknown metric, row or setting."""
    names, settings = [row.name for row in rows], [column.setting_name for column in columns]
    for claim in claims:
        if claim.metric_key is not None:
            select_metrics_keeping_order([claim.metric_key])
        if not metrics_only:
            for valid, claimed in ((names, (*claim.better_rows, claim.other_row)), (settings, claim.setting_names)):
                for name in claimed:
                    check_name(f"claims: {claim.statement}", name, valid)


_RESERVED_TRAIN_OPTION_NAMES = (
    "data", "seed", "out", "resume", "overwrite", "dry_run", "progress", "device", "root", "validation",
)  # fmt: skip
"""Options of `contraport.train` that the comparison sets itself, so that rows and columns may not."""


def suite_entries_by_name(option: Literal["objectives", "settings"], *suites: OptionMap) -> dict[str, OptionMap]:
    """Merge the named entries that several suites give for `objectives` or `settings`."""
    entries = (entry for suite in suites for entry in suite.get(option, ()))
    return {str(name): entry for entry in entries if isinstance(entry, Mapping) for name in entry}


def split_or_look_up_entries(
    values: Iterable[str | OptionMap], suite_entries: Mapping[str, OptionMap]
) -> list[str | OptionMap]:
    """Split option values at commas, and replace names by their definitions in the suite.

    A part without a colon before its ``=`` continues the settings before it. Quoted values keep their commas.

    >>> split_or_look_up_entries(["info-nce,gca-uot:relaxation=0.2,q=0.1", "U(a, b)"], {"U(a, b)": {"U(a, b)": "iot"}})
    ['info-nce', 'gca-uot:relaxation=0.2,q=0.1', {'U(a, b)': 'iot'}]
    """
    entries: list[str | OptionMap] = []
    for value in values:
        if not isinstance(value, str) or value in suite_entries:
            entries.append(suite_entries[value] if isinstance(value, str) else value)
            continue
        for position, part in enumerate(split_at_outer_commas(value)):
            continues = position > 0 and "=" in part.partition(":")[0]
            if continues and isinstance(entries[-1], str):
                entries[-1] = f"{entries[-1]},{part}"
            else:
                entries.append(part.strip())
    return entries


def parse_row(value: str | OptionMap, suggested_names: Iterable[str]) -> Row:
    """Parse an objective with settings, such as "gca-uot:relaxation=0.2", to a table row.

    Args:
        value: the entry.
        suggested_names: names that the error for an unknown name suggests, besides those of objectives.

    Raises:
        UsageError: unknown objective, option or setting.
    """
    if isinstance(value, str):
        return Row(value, _parse_objective_to_train_options(value, suggested_names))
    name, options = _unpack_name_and_options("objectives", value)
    if isinstance(options, str):
        return Row(name, _parse_objective_to_train_options(options))
    return Row(name, _nest_objective_settings(f"objectives: {name}", dict(options)))


def _unpack_name_and_options(argument: str, entry: OptionMap) -> tuple[str, str | OptionMap]:
    """Return the name and the options of an entry ``{name: options}``."""
    is_single = isinstance(entry, Mapping) and len(entry) == 1
    check(is_single, f"{argument}: must be a name, or one name with its options, got {entry!r}.", "entry")
    ((name, options),) = entry.items()
    is_options = isinstance(options, str | Mapping)
    check(is_options, f"{argument}: {name} must have options of contraport train, got {options!r}.", "entry")
    return str(name), options


def _parse_objective_to_train_options(text: str, suggested_names: Iterable[str] = ()) -> dict[str, Any]:
    """Parse an objective, such as "rince:q=0.1", into options of `contraport.train`.

    Args:
        text: the name and settings, such as in the examples.
        suggested_names: names that the error for an unknown name suggests, besides those of objectives.

    >>> _parse_objective_to_train_options("gca-uot:relaxation=0.2,temperature=0.1")
    {'recipe': 'gca-uot', 'temperature': 0.1, 'objective_settings': {'relaxation': 0.2}}
    >>> _parse_objective_to_train_options("gca-ince:target='domains:alpha=0.5,beta=0'")
    {'recipe': 'gca-ince', 'target': 'domains:alpha=0.5,beta=0'}
    >>> _parse_objective_to_train_options("gca-uot:marginal_weight=(.1,.2)")
    {'recipe': 'gca-uot', 'objective_settings': {'marginal_weight': (0.1, 0.2)}}
    """
    name, _, rest = text.partition(":")
    names = {*RECIPES, *OBJECTIVES, OBJECTIVE_FROM_PARTS}
    if name not in names:
        raise unknown_name_error(
            "objectives", name, {*names, *suggested_names}, list_command="contraport list objectives"
        )
    options: dict[str, Any] = {"recipe" if name in RECIPES else "objective": name}
    parts = [part.partition("=") for part in split_at_outer_commas(rest)]
    for key, equals, value in parts:
        check(bool(equals), f"objectives: must have the form {name}:setting=value, got {text!r}.", "syntax")
        options[key] = parse_setting_value(strip_quotes(value))
    try:
        return _nest_objective_settings(f"objectives: {name}", options)
    except UsageError as error:
        cut = next((f"{key}='{value},...'" for key, _, value in parts[:-1] if ":" in value), None)
        if cut is None:
            raise
        raise UsageError(f"{error} Quote a value that contains commas: {cut}.", kind="unquoted") from error


def _nest_objective_settings(argument: str, options: dict[str, Any]) -> dict[str, Any]:
    """Move options that `train` does not have into `objective_settings`.

    Raises:
        UsageError: the objective does not have such a setting either.
    """
    options = replace_deprecated_options(TRAIN_OPTIONS, options)
    top = {key: value for key, value in options.items() if key in TRAIN_OPTIONS}
    own = {key: value for key, value in options.items() if key not in TRAIN_OPTIONS}
    parameters = get_objective_signature_parameters(top)
    for key in own:
        if key not in parameters:
            names = [name for name in TRAIN_OPTIONS if name not in _RESERVED_TRAIN_OPTION_NAMES]
            error = unknown_name_error(f"{argument}: option or setting", key, {*names, *parameters})
            own_settings = f"Settings of the objective: {', '.join(parameters) or 'none'}."
            raise UsageError(f"{error} {own_settings}", kind="unknown")
    check_train_options(argument, top)
    return merge_train_options(top, {"objective_settings": own}) if own else top


def get_objective_signature_parameters(options: OptionMap) -> Mapping[str, inspect.Parameter]:
    """Return the signature parameters of the objective that the options select."""
    recipe = RECIPES.get(str(options.get("recipe")))
    name = options.get("objective", "nt-xent" if recipe is None else recipe.settings.get("objective"))
    is_named = name in OBJECTIVES or name == OBJECTIVE_FROM_PARTS
    return inspect.signature(get_objective_entry(name).build).parameters if is_named else {}


def check_train_options(argument: str, options: OptionMap) -> None:
    """Raise `UsageError` for an unknown, reserved or invalid option of `train`."""
    for key, value in options.items():
        check_name(argument, key, TRAIN_OPTIONS)
        message = f"{argument}: {key} is set by the comparison itself, got {value!r}."
        check(key not in _RESERVED_TRAIN_OPTION_NAMES, message, "reserved")
        with rename_argument(f"{argument}: {key}", key):
            TRAIN_OPTIONS[key].check_value(value)


def copy_rows_per_option_combination(rows: Sequence[Row], option_equals_values: Sequence[str]) -> tuple[Row, ...]:
    """Copy each table row once for each combination of option values."""
    expanded = tuple(rows)
    for text in option_equals_values:
        key, equals, values = text.partition("=")
        check(bool(equals and values), f"over: must have the form option=value,value, got {text!r}.", "syntax")
        copies = []
        for row, value in itertools.product(
            expanded, [parse_setting_value(strip_quotes(part)) for part in split_at_outer_commas(values)]
        ):
            objective = {name: row.options[name] for name in ("recipe", "objective") if name in row.options}
            option = _nest_objective_settings(f"over: {row.name}", {**objective, key: value})
            copies.append(Row(f"{row.name}, {key} {value}", merge_train_options(row.options, option)))
        expanded = tuple(copies)
    return expanded


_OPTION_AND_DEFAULT_BY_SETTING_WORD = {
    "corrupt": ("corrupt", "noise:3"),
    "mismatched": ("mismatch", "0.2"),
    "domains": ("domains", "style"),
    "imbalanced": ("imbalance", "100"),
}
"""Option of `contraport.train` and its default value, by word of a setting such as "strong+mismatched"."""


def parse_column_setting(value: str | OptionMap, suggested_names: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Parse a data setting such as "strong+mismatched" into training options.

    >>> parse_column_setting("strong+mismatched:0.2")
    ('strong+mismatched:0.2', {'augment': 'strong', 'mismatch': 0.2})
    >>> parse_column_setting("corrupt-strong")
    ('corrupt+strong', {'corrupt': 'noise:3', 'augment': 'strong'})
    """
    if not isinstance(value, str):
        name, options = _unpack_name_and_options("settings", value)
        if isinstance(options, str):
            return name, parse_column_setting(options)[1]
        options = replace_deprecated_options(TRAIN_OPTIONS, options)
        check_train_options(f"settings: {name}", options)
        return name, options
    options = {}
    words = ("plain", *AUGMENT_NAMES, *_OPTION_AND_DEFAULT_BY_SETTING_WORD)
    parts = re.split(rf"\+|-(?={'|'.join(words)})", value)  # at "+", or at "-" before a word
    for part in parts:
        name, _, rest = part.partition(":")
        if name not in words:
            names = {*words, *suggested_names}
            raise unknown_name_error("settings", name, names, list_command="contraport compare --help")
        if name in AUGMENT_NAMES:
            options["augment"] = part
        elif name != "plain":
            option, default = _OPTION_AND_DEFAULT_BY_SETTING_WORD[name]
            options[option] = parse_setting_value(strip_quotes(rest or default))
    check_train_options(f"settings: {value}", options)
    return "+".join(parts), options


def get_suites_folder() -> Path:
    """Return the folder of the comparison suites that come with the package."""
    package = Path(contraport.__file__).parent
    inside = package / "suites"
    return inside if inside.is_dir() else package.parents[1] / "benchmarks" / "suites"


def suite_paths_by_name() -> dict[str, Path]:
    """Return the path of each suite file, by suite name."""
    return {file.stem: file for file in sorted(get_suites_folder().glob("*.yaml"))}


def load_suite(suite: str | Path) -> dict[str, Any]:
    """Load a comparison suite, given by name or file path, as a dictionary.

    Raises:
        UsageError: unknown suite, missing file, or invalid contents.
    """
    path = Path(suite)
    if path.suffix not in (".yaml", ".yml"):
        suites = suite_paths_by_name()
        check(not path.is_file(), f"suite: must be a name or end in .yaml, got the file {str(path)!r}.", "suffix")
        if str(suite) not in suites:
            raise unknown_name_error("suite", suite, suites, list_command="contraport list suites")
        path = suites[str(suite)]
    check(path.is_file(), f"suite: there is no file {str(path)!r}.", "not_found")
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise unreadable_error(f"suite: {path}", "YAML", error) from error
    check(isinstance(values, dict), f"suite: {path} must contain keys with values.", "not_a_mapping")
    values = replace_deprecated_options(COMPARE_COMMAND_SPEC.options_by_name, values)
    if isinstance(values.get("quick"), dict):
        values["quick"] = replace_deprecated_options(COMPARE_COMMAND_SPEC.options_by_name, values["quick"])
    keys = [*(name for name in COMPARE_COMMAND_SPEC.options_by_name if name not in ("suite", "out")), *SUITE_ONLY_KEYS]
    for key in [*values, *values.get("quick", {})]:
        check_name(f"suite: {path}: key", key, keys)
    return values


def parse_claim(value: Any) -> Claim:
    """Parse a claim that some rows of a comparison are better than another row.

    Raises:
        UsageError: missing or unknown keys, or wrong values.
    """
    is_claim = isinstance(value, Mapping) and {"says", "better", "than"} <= value.keys()
    check(is_claim, f"claims: must have the keys says, better and than, got {value!r}.", "missing_key")
    for key in value:
        check_name("claims: key", key, CLAIM_FIELD_BY_KEY)
    lists = {key: tuple(value[key]) for key in ("better", "settings") if key in value}
    has_lists = not any(isinstance(value[key], str) for key in lists)
    check(has_lists, f"claims: better and settings must be lists of names, got {value!r}.", "not_a_list")
    each = value.get("each", False)
    check(isinstance(each, bool), f"claims: each must be true or false, got {each!r}.", "not_a_bool")
    return Claim(**{CLAIM_FIELD_BY_KEY[key]: entry for key, entry in {**value, **lists}.items()})
