"""Figure of logged metrics over the training steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from contraport.errors import UsageError, check, check_nonempty_sequence, check_type
from contraport.metrics import find_metric
from contraport.plots.figure_setup import (
    LINE_STYLES,
    SERIES_COLORS,
    add_legend_above_panels,
    create_panels,
    escape_dollars,
    escape_legend_label,
)
from contraport.plots.plot_inputs import RunSource, as_plot_array, is_run_source, load_run, sources_by_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_POINTS_PER_LINE = 1_000  # maximum number of points of a curve; longer curves are drawn by evenly spaced points

COLUMN_TITLES = {
    "loss": "Loss",
    "mi_bound": "Lower bound of mutual information, nats",
    "lr": "Learning rate",
    "temperature": "Temperature",
    "plan_mass": "Mass of the plan",
    "seconds": "Training time, s",
    "images_per_second": "Items per second",
    "data_wait": "Share of time waiting for data",
    "epoch": "Epoch",
}
"""Titles of logged columns of `metrics.jsonl`, except online metrics, whose titles are those of the metrics."""


_MetricsRows = Sequence[Mapping[str, Any]]  # rows as in `metrics.jsonl`: the logged values of a step by column


def column_title(column: str) -> str:
    """Return the display title of a logged metric, or else its key.

    >>> column_title("lr"), column_title("knn"), column_title("mine")
    ('Learning rate', 'kNN', 'mine')
    """
    metric = find_metric(column)
    return COLUMN_TITLES.get(column, column if metric is None else metric.title)


def is_percent_column(column: str) -> bool:
    """Return whether a logged metric is a share that is displayed in percent.

    >>> is_percent_column("knn"), is_percent_column("loss")
    (True, False)
    """
    metric = find_metric(column)
    return column in ("plan_mass", "data_wait") if metric is None else metric.is_shown_in_percent


def evenly_spaced_rows_with_key(rows: _MetricsRows, key: str) -> list[Mapping[str, Any]]:
    """Return rows that have `key`, thinned evenly to at most `MAX_POINTS_PER_LINE`.

    >>> evenly_spaced_rows_with_key([{"step": 0, "loss": 1.0}, {"step": 1}], "loss")
    [{'step': 0, 'loss': 1.0}]
    """
    present = [row for row in rows if row.get(key) is not None]
    return present[:: max(1, math.ceil(len(present) / MAX_POINTS_PER_LINE))]


def curves(
    runs: RunSource | Sequence[RunSource] | Mapping[str, Any], keys: str | Sequence[str] = "loss", *, width: float = 5.0
) -> Figure:
    """Draw logged metrics over the training steps, with one line per run.

    Losses of different objectives differ by constants: compare their shape, not their level.

    Args:
        runs: run folder, several of them, or a mapping by name to a run folder, rows as in `metrics.jsonl`, or one
            value per step.
        keys: metrics to draw, each in a panel of its own, such as ``loss``, ``lr`` or ``temperature``.
        width: of the figure, in inches; 3.9 suits a phone.

    Raises:
        UsageError: a run has no metrics or is corrupt, no run has a column, or matplotlib is not installed.

    >>> figure = curves({"a": [3.0, 2.0, 1.5], "b": [3.0, 1.0, 0.5]})
    >>> [line.get_label() for line in figure.axes[0].get_lines()]
    ['a', 'b']
    """
    columns = [keys] if isinstance(keys, str) else keys
    check_nonempty_sequence("keys", columns, "a name or a list of names of metrics")
    for key in columns:
        check_type("keys", key, str, "'loss'")
    only_key = columns[0] if len(columns) == 1 else None
    lines = {name: _resolve_metrics_rows(name, source, only_key) for name, source in sources_by_name(runs).items()}
    logged = sorted({column for rows in lines.values() for row in rows for column in row} - {"step"})
    for key in columns:
        present = any(row.get(key) is not None for rows in lines.values() for row in rows)
        check(present, f"keys: no run has logged {key!r}; logged: {', '.join(logged) or 'nothing'}.", "unknown")
    figure, axes = create_panels(len(columns), figure_width=width, ratio=1.45)
    for ax, key in zip(axes, columns, strict=True):
        for position, (name, rows) in enumerate(lines.items()):
            points = evenly_spaced_rows_with_key(rows, key)
            ax.plot(
                [row["step"] for row in points],
                [row[key] for row in points],
                color=SERIES_COLORS[position % len(SERIES_COLORS)],
                linestyle=LINE_STYLES[position % len(LINE_STYLES)],
                marker="o" if len(points) == 1 else None,  # a line of one point is invisible
                label=escape_legend_label(name) or "_unnamed",
            )
        ax.set(xlabel="step", title=escape_dollars(column_title(key)))
        if is_percent_column(key):
            ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g}%")
        else:
            ax.ticklabel_format(axis="y", scilimits=(-2, 4), useMathText=True)
    add_legend_above_panels(figure, axes[0])
    return figure


def _resolve_metrics_rows(name: str, source: Any, key_of_values: str | None) -> _MetricsRows:
    """Convert a run folder, rows or an array to rows of metrics."""
    if is_run_source(source):
        return load_run(source).metrics_rows()
    if isinstance(source, Sequence) and source and all(isinstance(row, Mapping) for row in source):
        has_steps = all("step" in row for row in source)
        check(has_steps, f"runs: each row of {name or 'the metrics'!r} must have a 'step'.", "missing_step")
        return source
    if isinstance(source, Tensor | np.ndarray | Sequence) and key_of_values is not None:
        # The curve of a diverged loss counts, so values may be infinite.
        values = as_plot_array(f"runs: {name or 'values'}", source, 1, finite=False)
        return [{"step": step, key_of_values: value} for step, value in enumerate(values.tolist())]
    raise UsageError(
        f"runs: must be run folders, rows of metrics, or one column of values by name, got {type(source).__name__}."
    )
