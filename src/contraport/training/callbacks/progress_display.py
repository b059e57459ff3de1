"""Progress display of a training run, as a bar or as lines."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from contraport.metrics import collect_metrics_for_display
from contraport.runs import MetricsRow
from contraport.training.callbacks.metrics_writer import MetricsWriter
from contraport.training.loop import Callback, Loop


class ProgressBar(Callback):
    """Callback that shows a progress bar in a terminal."""

    def __init__(self, console: Console, metrics_writer: MetricsWriter) -> None:
        self._metrics_writer = metrics_writer
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}", markup=False, table_column=Column(no_wrap=True)),
            BarColumn(bar_width=6, table_column=Column(no_wrap=True)),
            TaskProgressColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            _MetricsColumn(),
            console=console,
        )

    def on_start(self, loop: Loop) -> None:
        self._bar = self._progress.add_task(
            "", total=loop.total_steps, completed=loop.step, epoch=_format_epoch(loop), measured=""
        )
        self._progress.start()

    def after_batch(self, loop: Loop) -> None:
        self._progress.update(
            self._bar,
            completed=loop.step,
            epoch=_format_epoch(loop),
            measured=format_metrics_row(self._metrics_writer.last_row, self._metrics_writer.last_online_values),
        )

    def on_end(self, loop: Loop) -> None:
        self._progress.stop()

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        self._progress.stop()


class _MetricsColumn(ProgressColumn):
    """Progress bar column of the last metrics, truncated in a narrow terminal."""

    def render(self, task: Task) -> Text:
        """Return the last metrics as text, cut to the width of the column."""
        return Text(task.fields["measured"], no_wrap=True, overflow="ellipsis")


class ProgressLines(Callback):
    """Callback that prints a line of progress and metrics every half minute."""

    def __init__(self, console: Console, metrics_writer: MetricsWriter) -> None:
        self._console = console
        self._metrics_writer = metrics_writer
        self._written_at = -30.0

    def on_start(self, loop: Loop) -> None:
        self._first_step = loop.step

    def after_batch(self, loop: Loop) -> None:
        """Print a line if the last one is half a minute old."""
        row, seconds = self._metrics_writer.last_row, self._metrics_writer.session_seconds
        if not row or seconds - self._written_at < 30:
            return
        self._written_at = seconds
        step, total = loop.step, loop.total_steps
        metrics = format_metrics_row(row, self._metrics_writer.last_online_values)
        left = (total - step) * seconds / (step - self._first_step)
        self._console.print(
            f"epoch {_format_epoch(loop)}  step {step:,}/{total:,}  {metrics}  "
            f"{time.strftime('%H:%M:%S', time.gmtime(left)) if left < 86_400 else f'{left / 86_400:.1f} days'} left",
            highlight=False,
            soft_wrap=True,
        )


def _format_epoch(loop: Loop) -> str:
    """Format the current epoch and the number of epochs, such as ``3/10``."""
    return f"{min(loop.completed_epochs + 1, loop.epochs):,}/{loop.epochs:,}"


def format_metrics_row(row: MetricsRow, online_values: MetricsRow) -> str:
    """Format logged metrics and the last online evaluation as one line.

    >>> row = {"loss": 1.5, "temperature": 0.2, "plan_mass": 0.8, "images_per_second": 1e4, "data_wait": 0.01}
    >>> format_metrics_row(row, {"knn": 0.912})
    'loss 1.500  temperature 0.2  plan mass 80.0%  kNN 91.2%  10,000 items/s  data wait 1%'
    """
    if not row:
        return ""
    parts = [f"loss {row['loss']:.3f}"]
    if row["temperature"] is not None:
        parts.append(f"temperature {row['temperature']:.3g}")
    if row["plan_mass"] is not None and abs(row["plan_mass"] - 1) > 1e-4:
        parts.append(f"plan mass {row['plan_mass']:.1%}")
    for metric in collect_metrics_for_display([online_values]):
        parts.append(f"{metric.title} {metric.format(online_values[metric.key])}")
    return "  ".join([*parts, f"{row['images_per_second']:,.0f} items/s", f"data wait {row['data_wait']:.0%}"])
