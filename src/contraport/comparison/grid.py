"""Grid of a comparison: rows (objectives), columns (data and settings), seeds, their cells, and claims about them."""

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

OptionMap = Mapping[str, Any]
"""Options of `contraport.train` by name."""

_ENCODER_SETTINGS = ("representation", "encoder", "shared_encoder", "pretrained", "init", "freeze", "image_size")
_NOT_IN_NAMES = re.compile(r"[^\w.=+-]+")


class Row(NamedTuple):
    """Row of the table: a named objective with its settings, as options of `contraport.train`."""

    name: str
    options: OptionMap


class Column(NamedTuple):
    """Column of the table: data and a setting, as options of `contraport.train`.

    Attributes:
        data: name or path of the data.
        data_label: name of the data in the table: the last part of the path, or all of it if other data end in the same.
        setting: name of the setting.
        options: options of the setting.
    """

    data: str
    data_label: str
    setting: str
    options: OptionMap

    @property
    def name(self) -> str:
        """Name of the data and the setting."""
        return f"{self.data_label}, {self.setting}"


class Claim(NamedTuple):
    """Claim that some rows are better than another row.

    Attributes:
        says: the claim as a sentence.
        better: names of the rows that should be better.
        than: name of the row that they should be better than.
        settings: settings that the claim is about; empty: all.
        measure: key of the metric; None: the first.
        each: whether the claim is about each of the rows and settings, rather than about some.
    """

    says: str
    better: tuple[str, ...]
    than: str
    settings: tuple[str, ...] = ()
    measure: str | None = None
    each: bool = False


class Cell(NamedTuple):
    """Training of the grid.

    Attributes:
        row: row of the table.
        column: column of the table.
        options: keyword arguments of `contraport.train` that determine the result.
        trial_number: number of the search trial, from 0; None for a cell of the table.
    """

    row: Row
    column: Column
    options: dict[str, Any]
    trial_number: int | None = None

    @property
    def seed(self) -> int:
        """Random seed of the training."""
        return int(self.options["seed"])

    @property
    def folder_name(self) -> str:
        """Name of the run folder, with a digest of all options."""
        digest = hashlib.sha256(json.dumps(to_config_value(self.options), sort_keys=True).encode()).hexdigest()[:8]
        kind = f"seed-{self.seed}" if self.trial_number is None else f"trial-{self.trial_number}"
        words = (Path(self.column.data).name, self.column.setting, self.row.name, kind)
        return "--".join(_NOT_IN_NAMES.sub("-", word).strip("-.") for word in words)[:120] + f"-{digest}"


@dataclass(frozen=True)
class Grid:
    """Grid of a comparison.

    Attributes:
        title: title of the tables.
        rows: objectives.
        columns: data and settings.
        baseline: name of the row that the others are compared with.
        common_options: options of `contraport.train` that hold for all cells.
        claims: claims to judge.
        options: options of the comparison.
        explicit_options: the options that were passed explicitly, rather than by a suite or default.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    baseline: str
    common_options: OptionMap
    claims: tuple[Claim, ...]
    options: CompareOptions
    explicit_options: OptionMap

    @property
    def seeds(self) -> range:
        """Seeds of each cell of the table."""
        return range(self.options.seeds)

    def build_cell(self, row: Row, column: Column, seed: int, *, trial: int | None = None, **others: Any) -> Cell:
        """Return a cell of the grid, with further options."""
        options: dict[str, Any] = {}
        for layer in (self.common_options, {"data": column.data}, column.options, row.options, others):
            options = merge_options(options, layer)
        return Cell(row, column, {**options, "seed": seed}, trial)

    @property
    def cells(self) -> list[Cell]:
        """All cells without a search, seed by seed, so that the first ones are a complete table with fewer seeds."""
        places = itertools.product(self.seeds, self.columns, self.rows)
        return [self.build_cell(row, column, seed) for seed, column, row in places]

    @cached_property
    def reference_row_settings(self) -> dict[str, dict[str, Any]]:
        """Rows whose untrained encoder and raw inputs are evaluated, with the settings that differ from the baseline's.

        These are the baseline and the first row of each other encoder or representation: metrics of another
        representation do not show what training added.
        """
        ordered = sorted(self.rows, key=lambda row: row.name != self.baseline)
        kinds = {row.name: _untrained_settings(self.build_cell(row, self.columns[0], 0).options) for row in ordered}
        base, seen = kinds[self.baseline], list[dict[str, Any]]()
        rows = {}
        for name, kind in kinds.items():
            if kind not in seen:
                seen.append(kind)
                rows[name] = {key: value for key, value in kind.items() if value != base.get(key, OPTIONS[key].default)}
        return rows

    @property
    def machine_options(self) -> dict[str, Any]:
        """Options of `contraport.train` that determine where cells are computed."""
        folders = {"root": self.options.root, "decoded": self.options.decoded}
        return {
            "device": self.options.device,
            "num_workers": self.options.num_workers or 0,
            **{name: None if folder is None else str(folder) for name, folder in folders.items()},
        }

    @property
    def out(self) -> Path:
        """Folder of the comparison."""
        if self.options.out is not None:
            return Path(self.options.out)
        suite = self.options.suite
        return Path("runs", "compare") if suite is None else default_path(str(suite), "compare")


def _untrained_settings(options: OptionMap) -> dict[str, Any]:
    """Return the settings that determine an untrained encoder and its metrics."""
    # Imported here because suites are listed without torch.
    from contraport.training.resolve import resolve_settings

    settings = resolve_settings(options)
    relevant = {name: getattr(settings, name) for name in _ENCODER_SETTINGS}
    representation = settings.representation or ""
    views = list(settings.given_views)
    is_one_view = representation.isdigit() and int(representation) < len(views)
    relevant["given_views"] = [views[int(representation)]] if is_one_view else views
    if representation in ("projection", "both") or settings.freezes_all:
        relevant |= {"projection": settings.projection, "projection_layers": settings.projection_layers}
    return relevant


def merge_options(options: OptionMap, others: OptionMap) -> dict[str, Any]:
    """Return options updated by others; settings of the objective are merged one by one.

    >>> merge_options({"objective_settings": {"q": 0.1}, "epochs": 2}, {"objective_settings": {"lam": 0.1}})
    {'objective_settings': {'q': 0.1, 'lam': 0.1}, 'epochs': 2}
    """
    merged = {**options, **others}
    own = [layer["objective_settings"] for layer in (options, others) if layer.get("objective_settings")]
    if own:
        merged["objective_settings"] = {key: value for layer in own for key, value in layer.items()}
    return merged
