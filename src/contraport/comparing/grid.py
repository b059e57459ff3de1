"""From what is asked, and a suite's file, to rows, columns and seeds, and the cells that they make."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import contraport
from contraport.catalog import OBJECTIVES, RECIPES
from contraport.catalog.augments import AUGMENTS
from contraport.errors import UsageError, cannot_read, check, unknown_name
from contraport.options import plain
from contraport.runs import default_path
from contraport.verbs.compare import VERB, CompareOptions
from contraport.verbs.train import OPTIONS

Given = Mapping[str, Any]

_OF_SUITES = ("title", "claims", "quick", "not_run")
_NOT_CHOSEN = ("data", "seed", "out", "resume", "overwrite", "dry_run", "progress", "device", "root", "validation")
_NOT_IN_NAMES = re.compile(r"[^\w.=+-]+")


class Row(NamedTuple):
    """A row of the table: an objective with its settings, under a name, as options of `contraport.train`."""

    name: str
    options: Given


class Column(NamedTuple):
    """A column of the table: data, and how they are seen, as options of `contraport.train`."""

    data: str
    setting: str
    options: Given

    @property
    def name(self) -> str:
        """The last part of what the data are called, and the setting."""
        return f"{Path(self.data).name}, {self.setting}"


class Claim(NamedTuple):
    """What a document says: that some rows are better than another.

    Attributes:
        says: the claim, in a sentence.
        better: the names of the rows that are to be better.
        than: the name of the row that they are to be better than.
        settings: in which settings; none: in all.
        measure: by which measure; none: the first.
    """

    says: str
    better: tuple[str, ...]
    than: str
    settings: tuple[str, ...] = ()
    measure: str | None = None


class Cell(NamedTuple):
    """A training of the grid.

    Attributes:
        row: of the table.
        column: of the table.
        options: keyword arguments of `contraport.train` that say what it is.
        trial: which of the search, from 0; none where the cell is one of the table.
    """

    row: Row
    column: Column
    options: dict[str, Any]
    trial: int | None = None

    @property
    def seed(self) -> int:
        """What all that is random depends on."""
        return int(self.options["seed"])

    @property
    def folder(self) -> str:
        """The name of its folder: another one if anything of it were otherwise."""
        digest = hashlib.sha256(json.dumps(plain(self.options), sort_keys=True).encode()).hexdigest()[:8]
        kind = f"seed-{self.seed}" if self.trial is None else f"trial-{self.trial}"
        words = (Path(self.column.data).name, self.column.setting, self.row.name, kind)
        return "--".join(_NOT_IN_NAMES.sub("-", word).strip("-.") for word in words)[:120] + f"-{digest}"


@dataclass(frozen=True)
class Grid:
    """What is compared.

    Attributes:
        title: what it is about.
        rows: the objectives.
        columns: the data and their settings.
        baseline: the name of the row that the others are compared with.
        common: the options of `contraport.train` that hold for all.
        claims: what documents say of it.
        asked: all that was asked.
        given: what of it a call gave; the rest is the suite's, or as it is by default.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    baseline: str
    common: Given
    claims: tuple[Claim, ...]
    asked: CompareOptions
    given: Given

    @property
    def seeds(self) -> range:
        """The seeds that each cell of the table is trained with."""
        return range(self.asked.seeds)

    def cell(self, row: Row, column: Column, seed: int, *, trial: int | None = None, **others: Any) -> Cell:
        """Return a cell of the grid, with some options of its own."""
        options: dict[str, Any] = {}
        for layer in (self.common, {"data": column.data}, column.options, row.options, others):
            options = overlaid(options, layer)
        return Cell(row, column, {**options, "seed": seed}, trial)

    @property
    def cells(self) -> list[Cell]:
        """All cells as they are without a search, one seed after the other, so that a part of them is a table too."""
        places = itertools.product(self.seeds, self.columns, self.rows)
        return [self.cell(row, column, seed) for seed, column, row in places]

    @property
    def out(self) -> Path:
        """The folder of the comparison."""
        if self.asked.out is not None:
            return Path(self.asked.out)
        suite = self.asked.suite
        return Path("runs", "compare") if suite is None else default_path(str(suite), "compare")


def overlaid(options: Given, others: Given) -> dict[str, Any]:
    """Return options with others over them; settings of the objective are joined one by one.

    >>> overlaid({"objective_settings": {"q": 0.1}, "epochs": 2}, {"objective_settings": {"lam": 0.1}})
    {'objective_settings': {'q': 0.1, 'lam': 0.1}, 'epochs': 2}
    """
    both = {**options, **others}
    own = [layer["objective_settings"] for layer in (options, others) if layer.get("objective_settings")]
    if own:
        both["objective_settings"] = {key: value for layer in own for key, value in layer.items()}
    return both


def grid_of(given: Given) -> Grid:
    """Return what is compared.

    Raises:
        UsageError: there is no such suite, it is not what it should be, or nothing is to be compared.
    """
    suite = given.get("suite")
    saved = {} if suite is None else read_suite(suite)
    check(suite is not None or not given.get("quick"), "quick: belongs to a suite; expected --suite with it.")
    smaller = saved.get("quick", {}) if given.get("quick") else {}
    check(not given.get("quick") or bool(smaller), f"quick: the suite {suite} has no smaller grid.")
    values = {**saved, **smaller}
    asked = CompareOptions(**{name: value for name, value in values.items() if name not in _OF_SUITES} | dict(given))
    check(len(asked.data) > 0, "data: expected one or more, got none.")
    own_rows, own_columns = (_saved(key, saved, smaller) for key in ("objectives", "settings"))
    rows = _over(tuple(_row(value, own_rows) for value in _listed(asked.objectives, own_rows)), asked.over)
    check(len(rows) > 0, "objectives: expected one or more, got none.")
    settings = [_setting(value, own_columns) for value in _listed(asked.settings, own_columns)]
    columns = tuple(Column(str(data), name, options) for data in asked.data for name, options in settings)
    for argument, names in (("objectives", [row.name for row in rows]), ("settings", [c.name for c in columns])):
        repeated = sorted({name for name in names if names.count(name) > 1})
        check(not repeated, f"{argument}: expected each once, got {', '.join(repeated)} more often.")
    baseline = asked.baseline or rows[0].name
    if baseline not in [row.name for row in rows]:
        raise unknown_name("baseline", baseline, [row.name for row in rows])
    own = {"epochs": asked.epochs, "encoder": asked.encoder, "items": asked.items}
    common = {**(asked.train or {}), **{name: value for name, value in own.items() if value is not None}}
    _check_options("train", common)
    claims = tuple(_claim(value) for value in values.get("claims", ()))
    title = str(values.get("title", f"{len(rows)} objectives compared"))
    return Grid(title, rows, columns, baseline, common, claims, asked, given)


def suites_folder() -> Path:
    """Return where the suites are: in the package, or in the project that it is installed from."""
    package = Path(contraport.__file__).parent
    inside = package / "suites"
    return inside if inside.is_dir() else package.parents[1] / "benchmarks" / "suites"


def read_suite(suite: str | Path) -> dict[str, Any]:
    """Return what a suite's file says.

    Raises:
        UsageError: there is no such suite, or it is not what it should be.
    """
    path = Path(suite)
    if path.suffix not in (".yaml", ".yml"):
        known = {file.stem: file for file in sorted(suites_folder().glob("*.yaml"))}
        if str(suite) not in known:
            raise unknown_name("suite", suite, known)
        path = known[str(suite)]
    check(path.is_file(), f"suite: there is no file {path}.")
    try:
        values = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise cannot_read(f"suite: {path}", "YAML", error) from error
    check(isinstance(values, dict), f"suite: {path}: expected keys with values.")
    known_keys = [*(name for name in VERB.options if name not in ("suite", "out")), *_OF_SUITES]
    for key in [*values, *values.get("quick", {})]:
        if key not in known_keys:
            raise unknown_name(f"suite: {path}: key", key, known_keys)
    return dict(values)


def _saved(key: str, *grids: Given) -> dict[str, Given]:
    """Return the rows or columns of saved grids that have a name of their own, by that name."""
    return {str(name): one for grid in grids for one in grid.get(key, ()) if isinstance(one, Mapping) for name in one}


def _listed(values: Iterable[str | Given], saved: Mapping[str, Given]) -> list[str | Given]:
    """Return what stands between commas one by one; what has no colon before its ``=`` goes on with settings.

    The name of what a suite has saved stands for that.

    >>> _listed(["info-nce,gca-uot:relaxation=0.2,temperature=0.1", "U(a, b)"], {"U(a, b)": {"U(a, b)": "iot"}})
    ['info-nce', 'gca-uot:relaxation=0.2,temperature=0.1', {'U(a, b)': 'iot'}]
    """
    found: list[str | Given] = []
    for value in values:
        if not isinstance(value, str) or value in saved:
            found.append(saved[value] if isinstance(value, str) else value)
            continue
        for place, part in enumerate(filter(None, value.split(","))):
            goes_on = place > 0 and "=" in part.partition(":")[0]
            if goes_on and isinstance(found[-1], str):
                found[-1] = f"{found[-1]},{part}"
            else:
                found.append(part.strip())
    return found


def _row(value: str | Given, saved: Given) -> Row:
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
    """
    name, _, rest = text.partition(":")
    if name not in RECIPES and name not in OBJECTIVES:
        raise unknown_name("objectives", name, {*RECIPES, *OBJECTIVES, *others})
    options: dict[str, Any] = {"recipe" if name in RECIPES else "objective": name}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        check(bool(equals), f"objectives: expected {name}:setting=value, got {text!r}.")
        options[key] = _read(value)
    return _sorted_out(f"objectives: {name}", options)


def _read(value: str) -> Any:
    """Return the number or truth value that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value, value)


def _sorted_out(argument: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options of which those that training does not know are settings of the objective.

    Raises:
        UsageError: the objective does not know one either.
    """
    top = {key: value for key, value in options.items() if key in OPTIONS}
    own = {key: value for key, value in options.items() if key not in OPTIONS}
    known = parameters_of(top)
    for key in own:
        if key not in known:
            raise unknown_name(f"{argument}: setting", key, [*OPTIONS, *known])
    _check_options(argument, top)
    return overlaid(top, {"objective_settings": own}) if own else top


def parameters_of(options: Given) -> Mapping[str, inspect.Parameter]:
    """Return the settings that the objective of some options has, by name."""
    recipe = RECIPES.get(str(options.get("recipe")))
    name = options.get("objective", "nt-xent" if recipe is None else recipe.settings.get("objective"))
    return inspect.signature(OBJECTIVES[name].make).parameters if name in OBJECTIVES else {}


def _check_options(argument: str, options: Given) -> None:
    for key, value in options.items():
        if key not in OPTIONS:
            raise unknown_name(argument, key, OPTIONS)
        check(key not in _NOT_CHOSEN, f"{argument}: {key} is the comparison's own, got {value!r}.")
        OPTIONS[key].judge(value)


def _over(rows: Sequence[Row], over: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows with each value of each option in turn."""
    found = tuple(rows)
    for text in over:
        key, equals, values = text.partition("=")
        check(bool(equals and values), f"over: expected option=value,value, got {text!r}.")
        found = tuple(
            Row(f"{row.name}, {key} {value}", overlaid(row.options, _with(row, key, value)))
            for row in found
            for value in map(_read, values.split(","))
        )
    return found


def _with(row: Row, key: str, value: Any) -> dict[str, Any]:
    basis = {key: row.options[key] for key in ("recipe", "objective") if key in row.options}
    return _sorted_out(f"over: {row.name}", {**basis, key: value})


_SETTINGS = ("plain", *AUGMENTS, "corrupt", "mismatched", "domains")


def _setting(value: str | Given, others: Iterable[str] = ()) -> tuple[str, dict[str, Any]]:
    """Return the name of a column, and what it means.

    >>> _setting("strong+mismatched:0.2")
    ('strong+mismatched:0.2', {'augment': 'strong', 'mismatch': 0.2})
    """
    if not isinstance(value, str):
        name, options = _named("settings", value)
        if isinstance(options, str):
            return name, _setting(options)[1]
        _check_options(f"settings: {name}", options)
        return name, dict(options)
    options = {}
    for part in value.replace("corrupt-strong", "corrupt+strong").split("+"):
        name, _, rest = part.partition(":")
        if name not in _SETTINGS:
            raise unknown_name("settings", name, {*_SETTINGS, *others})
        if name in AUGMENTS:
            options["augment"] = part
        elif name != "plain":
            option, default = {
                "corrupt": ("corrupt", "noise:3"),
                "mismatched": ("mismatch", "0.2"),
                "domains": ("domains", "style"),
            }[name]
            options[option] = _read(rest or default)
    _check_options(f"settings: {value}", options)
    return value, options


def _claim(value: Any) -> Claim:
    good = isinstance(value, Mapping) and {"says", "better", "than"} <= value.keys()
    check(good, f"claims: expected says, better and than, got {value!r}.")
    for key in value:
        if key not in Claim._fields:
            raise unknown_name("claims: key", key, Claim._fields)
    lists = {key: tuple(value[key]) for key in ("better", "settings") if key in value}
    if any(isinstance(value[key], str) for key in lists):
        raise UsageError(f"claims: expected lists of names, got {value!r}.")
    return Claim(**{**value, **lists})
