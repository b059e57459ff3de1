"""Training runs of a comparison, one per objective, data set and seed."""

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

from contraport.comparison.command_options import CompareOptions
from contraport.metrics import Metric, select_metrics_keeping_order
from contraport.options import to_config_value
from contraport.runs import default_run_path
from contraport.training.config import TRAIN_OPTIONS

OptionMap = Mapping[str, Any]
"""Options of `contraport.train` by name."""

_UNTRAINED_ENCODER_OPTION_NAMES = (
    "representation",
    "encoder",
    "shared_encoder",
    "pretrained",
    "init",
    "freeze",
    "image_size",
)
"""Options of `contraport.train` that determine the untrained encoder, and the size of its images."""


class Row(NamedTuple):
    """Objective and training options, which form one row of the comparison table."""

    name: str
    options: OptionMap


class Column(NamedTuple):
    """Data set and its options, which form one column of the comparison table.

    Attributes:
        data: name or path of the data.
        data_label: name of the data in the table: the last part of the path, or the whole path if that is ambiguous.
        setting_name: name of the setting (augmentation, corruption or other options of the column).
    """

    data: str
    data_label: str
    setting_name: str
    options: OptionMap

    @property
    def name(self) -> str:
        """Name of the column in the table, from its data and setting."""
        return f"{self.data_label}, {self.setting_name}"


class Claim(NamedTuple):
    """Claim that some rows of a comparison are better than another row.

    Attributes:
        statement: the claim as a sentence.
        better_rows: names of the rows that the claim states to be better.
        other_row: name of the row that they are compared with.
        setting_names: names of the settings that the claim is about; empty: all settings.
        metric_key: key of the metric; None: the first metric of the comparison.
        requires_all: whether each of the rows must be better in each setting; otherwise one of them in one setting.
    """

    statement: str
    better_rows: tuple[str, ...]
    other_row: str
    setting_names: tuple[str, ...] = ()
    metric_key: str | None = None
    requires_all: bool = False


class TrainingCell(NamedTuple):
    """Training run of one objective on one data set with one seed.

    Attributes:
        options: keyword arguments of `contraport.train` that determine the training result.
        trial_number: number of the hyperparameter search trial, from 0; None for a cell of the table.
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
    def run_folder_name(self) -> str:
        """Name of the run folder, which ends with a digest of all options."""
        digest = hashlib.sha256(json.dumps(to_config_value(self.options), sort_keys=True).encode()).hexdigest()[:8]
        kind = f"seed-{self.seed}" if self.trial_number is None else f"trial-{self.trial_number}"
        words = (Path(self.column.data).name, self.column.setting_name, self.row.name, kind)
        return "--".join(re.sub(r"[^\w.=+-]+", "-", word).strip("-.") for word in words)[:120] + f"-{digest}"


@dataclass(frozen=True)
class Grid:
    """Objectives, data sets and seeds of a comparison, with all training options.

    Attributes:
        common_options: options of `contraport.train` that hold for all cells.
        claims: claims of the suite that the results are tested against.
        compare_options: options of `contraport.compare`, after the suite and the defaults were filled in.
        explicit_options: options of `contraport.compare` that were passed explicitly, not by a suite or default.
    """

    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    baseline: str
    common_options: OptionMap
    claims: tuple[Claim, ...]
    compare_options: CompareOptions
    explicit_options: OptionMap

    @property
    def seeds(self) -> range:
        """Random seeds of the training runs, from 0."""
        return range(self.compare_options.seeds)

    @property
    def metrics(self) -> list[Metric]:
        """Metrics of the comparison in order, the main metric first."""
        return select_metrics_keeping_order(self.compare_options.metrics)

    def build_cell(
        self, row: Row, column: Column, seed: int, *, trial_number: int | None = None, **overrides: Any
    ) -> TrainingCell:
        """Build the training run of an objective, a data set and a seed."""
        options: dict[str, Any] = {}
        for layer in (self.common_options, {"data": column.data}, column.options, row.options, overrides):
            options = merge_train_options(options, layer)
        return TrainingCell(row, column, {**options, "seed": seed}, trial_number)

    @property
    def cells_of_all_seeds(self) -> list[TrainingCell]:
        """All training runs of the comparison, ordered by seed, without hyperparameter trials.

        The first cells are thus a complete table with fewer seeds.
        """
        places = itertools.product(self.seeds, self.columns, self.rows)
        return [self.build_cell(row, column, seed) for seed, column, row in places]

    @cached_property
    def untrained_encoder_changes_by_row(self) -> dict[str, dict[str, Any]]:
        """Options of each distinct untrained encoder that differ from the baseline, by row.

        The untrained encoder and the raw inputs are evaluated too for these rows: the baseline, and the first row of
        each other encoder or representation. Metrics of another representation do not show what training added.
        """
        ordered = sorted(self.rows, key=lambda row: row.name != self.baseline)
        column = self.columns[0]
        kinds = {
            row.name: _select_untrained_encoder_options(self.build_cell(row, column, 0).options) for row in ordered
        }
        base, seen = kinds[self.baseline], list[dict[str, Any]]()
        rows = {}
        for name, kind in kinds.items():
            if kind not in seen:
                seen.append(kind)
                rows[name] = {
                    key: value for key, value in kind.items() if value != base.get(key, TRAIN_OPTIONS[key].default)
                }
        return rows

    @property
    def machine_options(self) -> dict[str, Any]:
        """Options of `contraport.train` that do not change the result, such as device."""
        folders = {"root": self.compare_options.root, "decoded": self.compare_options.decoded}
        return {
            "device": self.compare_options.device,
            "num_workers": self.compare_options.num_workers or 0,
            **{name: None if folder is None else str(folder) for name, folder in folders.items()},
        }

    @property
    def output_folder(self) -> Path:
        """Output folder of the comparison."""
        if self.compare_options.out is not None:
            return Path(self.compare_options.out)
        suite = self.compare_options.suite
        return Path("runs", "compare") if suite is None else default_run_path(str(suite), "compare")


def _select_untrained_encoder_options(options: OptionMap) -> dict[str, Any]:
    """Return those training options that determine the metrics of the untrained encoder."""
    # Imported here because suites are listed without torch.
    from contraport.training.settings_and_run_folder import resolve_settings

    settings = resolve_settings(options)
    relevant = {name: getattr(settings, name) for name in _UNTRAINED_ENCODER_OPTION_NAMES}
    representation = settings.representation or ""
    views = list(settings.given_views)
    is_one_view = representation.isdigit() and int(representation) < len(views)
    relevant["given_views"] = [views[int(representation)]] if is_one_view else views
    if representation in ("projection", "both") or settings.freezes_all_encoders_throughout:
        relevant |= {"projection": settings.projection, "projection_layers": settings.projection_layers}
    return relevant


def merge_train_options(options: OptionMap, overrides: OptionMap) -> dict[str, Any]:
    """Update training options by overrides, merging `objective_settings` key by key.

    >>> settings = {"objective_settings": {"lam": 0.1}, "epochs": 2}
    >>> merge_train_options({"objective_settings": {"q": 0.1}}, settings)
    {'objective_settings': {'q': 0.1, 'lam': 0.1}, 'epochs': 2}
    """
    merged = {**options, **overrides}
    own = [layer["objective_settings"] for layer in (options, overrides) if layer.get("objective_settings")]
    if own:
        merged["objective_settings"] = {key: value for layer in own for key, value in layer.items()}
    return merged
