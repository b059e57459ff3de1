"""What was measured, as rows of texts: what the console prints and a notebook shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contraport.metrics import Metric, metrics_of_rows
from contraport.metrics.baselines import BEFORE

EPOCHS_SHOWN = 5
"""Of more models that were kept, so many are in the table; `evaluation.json` has them all."""


def evaluation_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows of an evaluation as texts, with the interval of what the trained encoder reaches.

    A baseline of which nothing was measured, as raw inputs of two kinds that cannot be compared, has no column.
    """
    found = {name: result["rows"].get(name, {}) for name in ("raw", *BEFORE, "trained")}
    columns = {name: values for name, values in found.items() if any(value is not None for value in values.values())}
    rows = result_rows(columns)
    for row, measure in zip(rows, metrics_of_rows(columns.values()), strict=True):
        ends = result["intervals"]["trained"].get(measure.key)
        row["95% interval"] = "-" if ends is None else _interval(measure, ends)
    return rows


def direction_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what the trained encoder reaches from one view to another as texts, a row for each direction."""
    directions = result["directions"]
    return [
        {"from to": direction}
        | {measure.title: measure.written(found[measure.key]["value"]) for measure in metrics_of_rows([found])}
        for direction, found in directions.items()
    ]


def epoch_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return what was measured of the checkpoints that were kept, at most `EPOCHS_SHOWN` spread evenly, as texts."""
    kept = [name for name in result["rows"] if name.startswith("epoch ")]
    places = {round(place * (len(kept) - 1) / max(1, EPOCHS_SHOWN - 1)) for place in range(EPOCHS_SHOWN)}
    shown = kept if len(kept) <= EPOCHS_SHOWN else [kept[place] for place in sorted(places)]
    return result_rows({name: result["rows"][name] for name in (*shown, "trained")}) if kept else []


def _interval(measure: Metric, ends: Mapping[str, float]) -> str:
    return f"{measure.written(ends['low'])} to {measure.written(ends['high'])}"


def difference_rows(differences: Mapping[str, Mapping[str, float]]) -> list[dict[str, str]]:
    """Return how much larger the numbers of one run are than those of another, as texts."""
    return [
        {
            "measure": measure.title,
            "difference": _apart(measure, differences[measure.key]["value"]) + " points" * measure.in_percent,
            "95% interval": " to ".join(_apart(measure, differences[measure.key][end]) for end in ("low", "high")),
        }
        for measure in metrics_of_rows([differences])
    ]


def _apart(measure: Metric, value: float) -> str:
    """Write a difference, of per cent in points, whose unit stands behind."""
    return measure.written(value).removesuffix("%")


def result_rows(columns: Mapping[str, Mapping[str, float | None]]) -> list[dict[str, str]]:
    """Return what was measured as texts, a row for each measure and a column for each encoder.

    What was not measured of one of them is a dash.
    """
    return [
        {"measure": measure.title} | {name: _text(measure, values.get(measure.key)) for name, values in columns.items()}
        for measure in metrics_of_rows(columns.values())
    ]


def _text(measure: Metric, value: float | None) -> str:
    return "-" if value is None else measure.written(value)
