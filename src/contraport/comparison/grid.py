"""What is compared: rows, columns and seeds, the cells that they make, and what is claimed of them."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from contraport.comparison.config import CompareOptions
from contraport.options import to_config_value
from contraport.runs import default_path
from contraport.training.config import OPTIONS

Given = Mapping[str, Any]

_OF_ENCODERS = ("representation", "encoder", "shared_encoder", "pretrained", "init", "freeze", "image_size")
_NOT_IN_NAMES = re.compile(r"[^\w.=+-]+")


class Row(NamedTuple):
    """A row of the table: an objective with its settings, under a name, as options of `contraport.train`."""

    name: str
    options: Given


class Column(NamedTuple):
    """A column of the table: data, and how they are seen, as options of `contraport.train`.

    Attributes:
        data: a name or a path.
        called: what the table calls them: the last part, or the whole where others end in the same.
        setting: how they are seen.
        options: what that is.
    """

    data: str
    called: str
    setting: str
    options: Given

    @property
    def name(self) -> str:
        """What the data are called, and the setting."""
        return f"{self.called}, {self.setting}"


class Claim(NamedTuple):
    """What a document says: that some rows are better than another.

    Attributes:
        says: the claim, in a sentence.
        better: the names of the rows that are to be better.
        than: the name of the row that they are to be better than.
        settings: in which settings; none: in all.
        measure: by which measure; none: the first.
        each: whether it says so of each of them, and not only of some.
    """

    says: str
    better: tuple[str, ...]
    than: str
    settings: tuple[str, ...] = ()
    measure: str | None = None
    each: bool = False


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
        digest = hashlib.sha256(json.dumps(to_config_value(self.options), sort_keys=True).encode()).hexdigest()[:8]
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
            options = merge_options(options, layer)
        return Cell(row, column, {**options, "seed": seed}, trial)

    @property
    def cells(self) -> list[Cell]:
        """All cells as they are without a search, one seed after the other, so that a part of them is a table too."""
        places = itertools.product(self.seeds, self.columns, self.rows)
        return [self.cell(row, column, seed) for seed, column, row in places]

    @cached_property
    def references(self) -> dict[str, dict[str, Any]]:
        """The rows beside which the encoder before training is measured, and how it differs from the baseline's.

        That is the baseline, and of other rows the first of each whose encoder is another one or is represented in
        another way: numbers of another representation say nothing of what training added.
        """
        ordered = sorted(self.rows, key=lambda row: row.name != self.baseline)
        kinds = {row.name: _before_training(self.cell(row, self.columns[0], 0).options) for row in ordered}
        base, known = kinds[self.baseline], list[dict[str, Any]]()
        found = {}
        for name, kind in kinds.items():
            if kind not in known:
                known.append(kind)
                found[name] = {key: value for key, value in kind.items() if value != base.get(key, _default(key))}
        return found

    @property
    def machine(self) -> dict[str, Any]:
        """The options of `contraport.train` that say where each cell is computed."""
        asked = self.asked
        folders = {"root": asked.root, "decoded": asked.decoded}
        return {
            "device": asked.device,
            "num_workers": asked.num_workers or 0,
            **{name: None if folder is None else str(folder) for name, folder in folders.items()},
        }

    @property
    def out(self) -> Path:
        """The folder of the comparison."""
        if self.asked.out is not None:
            return Path(self.asked.out)
        suite = self.asked.suite
        return Path("runs", "compare") if suite is None else default_path(str(suite), "compare")


def _before_training(options: Given) -> dict[str, Any]:
    """Return the settings that determine an untrained encoder and its metrics."""
    # Here, not above: suites are listed without torch.
    from contraport.training.resolve import resolve_settings

    settings = resolve_settings(options)
    found = {name: getattr(settings, name) for name in _OF_ENCODERS}
    shown = settings.representation or ""
    views = list(settings.given_views)
    found["given_views"] = [views[int(shown)]] if shown.isdigit() and int(shown) < len(views) else views
    if shown in ("projection", "both") or settings.freezes_all:
        found |= {"projection": settings.projection, "projection_layers": settings.projection_layers}
    return found


def _default(option: str) -> Any:
    return OPTIONS[option].default


def merge_options(options: Given, others: Given) -> dict[str, Any]:
    """Return options with others over them; settings of the objective are joined one by one.

    >>> merge_options({"objective_settings": {"q": 0.1}, "epochs": 2}, {"objective_settings": {"lam": 0.1}})
    {'objective_settings': {'q': 0.1, 'lam': 0.1}, 'epochs': 2}
    """
    both = {**options, **others}
    own = [layer["objective_settings"] for layer in (options, others) if layer.get("objective_settings")]
    if own:
        both["objective_settings"] = {key: value for layer in own for key, value in layer.items()}
    return both
