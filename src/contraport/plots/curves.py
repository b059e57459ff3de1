"""Curves over the steps of trainings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from contraport.errors import UsageError, check
from contraport.metrics import metric_by_key
from contraport.plots.colors import SERIES
from contraport.plots.figure_setup import DASHES, add_legend_above, escape_dollars, panels, percent_formatter
from contraport.plots.plot_inputs import Folder, array, by_name, is_folder, run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS_PER_LINE = 1_000
"""A longer curve is drawn by every k-th of its rows."""

TITLES = {
    "loss": "Loss",
    "mi_bound": "Bound of mutual information, nats",
    "lr": "Learning rate",
    "temperature": "Temperature",
    "plan_mass": "Mass of the plan",
    "seconds": "Seconds of training",
    "images_per_second": "Items a second",
    "data_wait": "Share of the time waiting for data",
    "epoch": "Epoch",
}
"""What columns of the metrics are called; those of measures have the measures' titles."""

_SHARES = ("plan_mass", "data_wait")

_Rows = Sequence[Mapping[str, Any]]


def column_title(column: str) -> str:
    """Return what a column of the metrics is called; one that nobody knows by its own name.

    >>> column_title("lr"), column_title("knn"), column_title("mine")
    ('Learning rate', 'kNN', 'mine')
    """
    measure = metric_by_key(column)
    return TITLES.get(column, column if measure is None else measure.title)


def is_percent_column(column: str) -> bool:
    """Return whether a column of the metrics is written in per cent.

    >>> is_percent_column("knn"), is_percent_column("loss")
    (True, False)
    """
    measure = metric_by_key(column)
    return column in _SHARES if measure is None else measure.pattern.endswith("%}")


def subsample_rows(rows: _Rows, key: str) -> list[Mapping[str, Any]]:
    """Return the rows that have a value of a column, evenly spaced ones where they are too many to draw.

    >>> subsample_rows([{"step": 0, "loss": 1.0}, {"step": 1}], "loss")
    [{'step': 0, 'loss': 1.0}]
    """
    found = [row for row in rows if row.get(key) is not None]
    return found[:: max(1, math.ceil(len(found) / POINTS_PER_LINE))]


def curves(
    runs: Folder | Sequence[Folder] | Mapping[str, Any], keys: str | Sequence[str] = "loss", *, width: float = 5.0
) -> Figure:
    """Draw columns of the metrics over the steps, one panel each and one line a run.

    Losses of different objectives differ by constants: compare their course, not their height.

    Args:
        runs: the folder of a run, several, or by name: a folder, rows as in `metrics.jsonl`, or values, one a step.
        keys: which columns: ``loss``, ``lr``, ``temperature`` or another of `metrics.jsonl`.
        width: of the figure, in inches; 3.9 suits a telephone.

    Raises:
        UsageError: a run has no metrics or is corrupt, none has one of the columns, or matplotlib is not installed.

    >>> figure = curves({"a": [3.0, 2.0, 1.5], "b": [3.0, 1.0, 0.5]})
    >>> [line.get_label() for line in figure.axes[0].get_lines()]
    ['a', 'b']
    """
    wanted = [keys] if isinstance(keys, str) else list(keys)
    check(len(wanted) > 0, "keys: expected one column or more, got none.")
    lines = {name: _rows(name, given, wanted) for name, given in by_name(runs).items()}
    for key in wanted:
        known = sorted({column for rows in lines.values() for row in rows for column in row} - {"step"})
        some = any(subsample_rows(rows, key) for rows in lines.values())
        check(some, f"keys: no run has logged {key!r}; they have {', '.join(known) or 'nothing'}.")
    figure, axes = panels(len(wanted), width=width, ratio=1.45)
    for ax, key in zip(axes, wanted, strict=True):
        for position, (name, rows) in enumerate(lines.items()):
            shown = subsample_rows(rows, key)
            ax.plot(
                [row["step"] for row in shown],
                [row[key] for row in shown],
                color=SERIES[position % len(SERIES)],
                linestyle=DASHES[position % len(DASHES)],
                marker="o" if len(shown) == 1 else None,
                label=escape_dollars(name) or "_unnamed",
            )
        ax.set(xlabel="step", title=escape_dollars(column_title(key)))
        if is_percent_column(key):
            ax.yaxis.set_major_formatter(percent_formatter())
        else:
            ax.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)
    add_legend_above(figure, axes[0])
    return figure


def _rows(name: str, given: Any, keys: Sequence[str]) -> _Rows:
    if is_folder(given):
        return run(given).metrics()
    if isinstance(given, Sequence) and given and all(isinstance(row, Mapping) for row in given):
        good = all("step" in row for row in given)
        check(good, f"runs: expected a 'step' in each row of {name or 'the metrics'!r}.")
        return given
    if isinstance(given, Tensor | np.ndarray | Sequence) and len(keys) == 1:
        values = array(f"runs: {name or 'values'}", given, 1, finite=False)  # a loss that diverged is a curve too
        return [{"step": step, keys[0]: value} for step, value in enumerate(values.tolist())]
    raise UsageError(
        f"runs: expected run folders, rows of metrics, or values of one column by name, got {type(given).__name__}."
    )
