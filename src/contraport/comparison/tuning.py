"""The own settings of each objective, searched with equally many trials that spread evenly over their ranges.

The first trial is the objective as it is; the others are points of Sobol's sequence, scrambled by a fixed seed, so that
a search with more trials has those of a shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch.quasirandom import SobolEngine

from contraport.comparison.grid import Cell, Column, Given, Grid, Row, merge_options
from contraport.comparison.grid_parsing import objective_parameters
from contraport.metrics import Metric


class SearchRange(NamedTuple):
    """The values of a setting that are tried.

    Attributes:
        low: the least.
        high: the largest.
        whole: whether they are whole numbers.
    """

    low: float
    high: float
    whole: bool = False

    def at(self, place: float) -> float | int:
        """Return the value at a place from 0 to 1, evenly spread in the logarithm.

        >>> SearchRange(0.1, 10.0).at(0.5), SearchRange(1, 10, whole=True).at(0.999)
        (1.0, 10)
        """
        if self.whole:
            return int(math.exp(math.log(self.low) + place * (math.log(self.high + 1) - math.log(self.low))))
        return float(f"{math.exp(math.log(self.low) + place * math.log(self.high / self.low)):.3g}")


SPACES = {
    "temperature": SearchRange(0.05, 1.0),
    "relaxation": SearchRange(0.05, 5.0),
    "iterations": SearchRange(1, 10, whole=True),
    "q": SearchRange(0.05, 0.95),
    "p": SearchRange(1.0, 8.0),
    "df": SearchRange(1.0, 20.0),
    "uniformity": SearchRange(0.03, 3.0),
    "weight": SearchRange(0.1, 10.0),
    "gamma": SearchRange(1.0, 64.0),
    "beta": SearchRange(0.25, 4.0),
    "prior": SearchRange(0.01, 0.2),
    "redundancy": SearchRange(5e-4, 5e-2),
}
"""What is tried of each setting, whatever the objective has of them; other settings stay as they are."""

_OWN_UNITS = {"t-simclr": {"temperature": SearchRange(1.0, 32.0)}, "alpha-cl": {"gamma": SearchRange(1.1, 8.0)}}
"""Where a setting of an objective is in other units."""

_IDLE = {"gca-uot": {"q"}}
"""Settings that change nothing of an objective as it is by default: of gca-uot, what is of its RINCE term alone."""


def search_space(row: Row, common: Given) -> dict[str, SearchRange]:
    """Return what is searched of a row: the settings that its objective has, without those that are fixed.

    Nor is a part searched that an objective leaves out by default, such as the penalty of iot: with it, iot would be
    iot-uniform.

    Args:
        row: what may fix some.
        common: what is fixed for all rows, such as ``--train.temperature``.
    """
    known = objective_parameters(row.options)
    options = merge_options(common, row.options)
    fixed = {*options, *(options.get("objective_settings") or {})}
    name = str(row.options.get("objective", row.options.get("recipe")))
    spaces = SPACES | _OWN_UNITS.get(name, {})
    left_out = _IDLE.get(name, set()) | {key for key, one in known.items() if one.default == 0}
    return {key: space for key, space in spaces.items() if key in known and key not in fixed | left_out}


def unequal(rows: Sequence[Row], common: Given) -> dict[str, list[str]]:
    """Return what rows fix of settings that are searched of another row, by the name of the row."""
    spaces = {row.name: search_space(row, common).keys() for row in rows}
    searched = {key for keys in spaces.values() for key in keys}
    fixed = {row.name: sorted(searched & objective_parameters(row.options).keys() - spaces[row.name]) for row in rows}
    return {name: keys for name, keys in fixed.items() if keys}


def build_trials(grid: Grid, row: Row, column: Column) -> list[Cell]:
    """Return the trainings of a search, by which the settings of a row in a column are chosen."""
    space = search_space(row, grid.common)
    points: list[list[float]] = []
    if space and grid.asked.tune > 1:
        engine = SobolEngine(len(space), scramble=True, seed=0)
        points = engine.draw(grid.asked.tune - 1).tolist()
    tried: list[Mapping[str, Any]] = [{}]
    tried += [{key: one.at(place) for (key, one), place in zip(space.items(), point, strict=True)} for point in points]
    return [
        grid.cell(row, column, 0, trial=number, validation=grid.asked.validation, **as_options(values))
        for number, values in enumerate(tried)
    ]


def as_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of an objective as options of `contraport.train`.

    >>> as_options({"temperature": 0.1, "q": 0.5})
    {'temperature': 0.1, 'objective_settings': {'q': 0.5}}
    """
    own = {key: value for key, value in values.items() if key != "temperature"}
    alone = {"temperature": values["temperature"]} if "temperature" in values else {}
    return {**alone, "objective_settings": own} if own else alone


def select_best_trial(trials: Sequence[Cell], found: Mapping[str, Mapping[str, Any]], measure: Metric) -> Cell | None:
    """Return the trial that is best on the validation items, or none unless all were tried and one succeeded."""
    if any(trial.folder not in found for trial in trials):
        return None
    reached = [(found[trial.folder].get("values", {}).get(measure.key), place) for place, trial in enumerate(trials)]
    known = [(value, place) for value, place in reached if value is not None]
    if not known:
        return None
    sign = -1 if measure.better == "lower" else 1
    _, place = max(known, key=lambda one: (sign * one[0], -one[1]))
    return trials[place]


def settled(trial: Cell, seed: int) -> Cell:
    """Return the cell of the table with the settings that a trial had."""
    options = {key: value for key, value in trial.options.items() if key != "validation"}
    return Cell(trial.row, trial.column, {**options, "seed": seed})


def as_text(trial: Cell, common: Given) -> str:
    """Return in words the settings that were tried, of what is not fixed for all."""
    own = {**trial.options, **(trial.options.get("objective_settings") or {})}
    return ", ".join(f"{key} {own[key]}" for key in search_space(trial.row, common) if key in own) or "its own"
