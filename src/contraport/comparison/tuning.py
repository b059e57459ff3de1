"""Hyperparameter search in a comparison, with the same number of trials per objective.

The first trial has the default settings. The others are points of a Sobol sequence, scrambled with a fixed seed, so
that a longer search contains the trials of a shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch.quasirandom import SobolEngine

from contraport.comparison.grid import Column, Grid, OptionMap, Row, TrainingCell, merge_train_options
from contraport.comparison.grid_builder import get_objective_signature_parameters
from contraport.metrics import Metric


class LogSearchRange(NamedTuple):
    """Range of a hyperparameter, searched on a logarithmic scale."""

    low: float
    high: float
    is_integer: bool = False

    def value_at(self, position: float) -> float | int:
        """Return the value at a position from 0 (`low`) to 1 (`high`).

        >>> LogSearchRange(0.1, 10.0).value_at(0.5), LogSearchRange(1, 10, is_integer=True).value_at(0.999)
        (1.0, 10)
        """
        if self.is_integer:
            return int(math.exp(math.log(self.low) + position * (math.log(self.high + 1) - math.log(self.low))))
        return float(f"{math.exp(math.log(self.low) + position * math.log(self.high / self.low)):.3g}")


SEARCH_RANGE_BY_SETTING = {
    "temperature": LogSearchRange(0.05, 1.0),
    "relaxation": LogSearchRange(0.05, 5.0),
    "iterations": LogSearchRange(1, 10, is_integer=True),
    "q": LogSearchRange(0.05, 0.95),
    "p": LogSearchRange(1.0, 8.0),
    "df": LogSearchRange(1.0, 20.0),
    "uniformity": LogSearchRange(0.03, 3.0),
    "weight": LogSearchRange(0.1, 10.0),
    "gamma": LogSearchRange(1.0, 64.0),
    "beta": LogSearchRange(0.25, 4.0),
    "prior": LogSearchRange(0.01, 0.2),
    "redundancy": LogSearchRange(5e-4, 5e-2),
}
"""Search range by name of the hyperparameter, in all objectives that have it; other settings keep their defaults."""

_OWN_SEARCH_RANGES_BY_OBJECTIVE = {
    "t-simclr": {"temperature": LogSearchRange(1.0, 32.0)},
    "alpha-cl": {"gamma": LogSearchRange(1.1, 8.0)},
}
"""Search ranges by objective and hyperparameter, which replace `SEARCH_RANGE_BY_SETTING` where the scale differs."""

_UNSEARCHED_SETTINGS_BY_OBJECTIVE = {"gca-uot": {"q"}}
"""Settings by objective that are not searched, since the objective's defaults leave them without effect."""


def build_search_space(row: Row, common_options: OptionMap) -> dict[str, LogSearchRange]:
    """Return a search range for each tuned hyperparameter of an objective.

    Fixed settings are left out, and parts that are off by default, such as the penalty of iot: with it, iot would be
    iot-uniform.

    Args:
        row: row of the table.
        common_options: options that hold for all rows, such as ``--train.temperature``.
    """
    parameters = get_objective_signature_parameters(row.options)
    options = merge_train_options(common_options, row.options)
    fixed = {*options, *(options.get("objective_settings") or {})}
    name = str(row.options.get("objective", row.options.get("recipe")))
    ranges = SEARCH_RANGE_BY_SETTING | _OWN_SEARCH_RANGES_BY_OBJECTIVE.get(name, {})
    left_out = _UNSEARCHED_SETTINGS_BY_OBJECTIVE.get(name, set()) | {
        key for key, one in parameters.items() if one.default == 0
    }
    return {key: one for key, one in ranges.items() if key in parameters and key not in fixed | left_out}


def settings_tuned_only_elsewhere_by_row(rows: Sequence[Row], common_options: OptionMap) -> dict[str, list[str]]:
    """Return, for each table row, the settings that only other rows tune."""
    spaces = {row.name: build_search_space(row, common_options).keys() for row in rows}
    searched = {key for keys in spaces.values() for key in keys}
    fixed = {
        row.name: sorted(searched & get_objective_signature_parameters(row.options).keys() - spaces[row.name])
        for row in rows
    }
    return {name: keys for name, keys in fixed.items() if keys}


def build_trial_cells(grid: Grid, row: Row, column: Column) -> list[TrainingCell]:
    """Build the hyperparameter search trials for one cell of the comparison table."""
    space = build_search_space(row, grid.common_options)
    points: list[list[float]] = []
    if space and grid.compare_options.tune > 1:
        engine = SobolEngine(len(space), scramble=True, seed=0)
        points = engine.draw(grid.compare_options.tune - 1).tolist()
    cells = []
    for number, point in enumerate([None, *points]):
        settings = {} if point is None else {key: space[key].value_at(x) for key, x in zip(space, point, strict=True)}
        options: dict[str, Any] = {"validation": grid.compare_options.validation}
        if "temperature" in settings:  # an option of `train` itself
            options["temperature"] = settings.pop("temperature")
        if settings:
            options["objective_settings"] = settings
        cells.append(grid.build_cell(row, column, 0, trial_number=number, **options))
    return cells


def find_best_trial_if_all_done(
    trials: Sequence[TrainingCell], results: Mapping[str, Mapping[str, Any]], metric: Metric
) -> TrainingCell | None:
    """Return the trial with the best validation metric once all trials are finished.

    It is None before, and if all trials failed.
    """
    if any(trial.run_folder_name not in results for trial in trials):
        return None
    values = [results[trial.run_folder_name].get("values", {}).get(metric.key) for trial in trials]
    succeeded = [(value, trial) for value, trial in zip(values, trials, strict=True) if value is not None]
    sign = -1 if metric.better_direction == "lower" else 1
    _, best = max(succeeded, key=lambda one: sign * one[0], default=(None, None))
    return best
