"""What long work shows of itself: lines at the foot of a terminal, one for each thing at work, the widest first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

Item = TypeVar("Item")


def make_console(*, stderr: bool = False, quiet: bool = False, width: int | None = None) -> Console:
    """Return a console that prints texts letter by letter, as they hold names: `[red]` and `:cat:` are no markup.

    All consoles of the package are made here.

    >>> make_console(width=40).print("[/x]1 :cat:")
    [/x]1 :cat:
    """
    return Console(stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False)


class StepCallback(Protocol):
    """What is called as a step of a bar begins, with what is at work."""

    def __call__(self, at_work: str) -> None: ...


class ProgressBars:
    """Bars on the standard error, of which one may be open within another; silent unless that is a terminal.

    They vanish as they end, and share one display, as two would write over one another.

    Args:
        shown: whether they are to be shown at all.

    >>> bars = ProgressBars()
    >>> with bars.steps(2) as step:
    ...     step("kNN")
    ...     sum(bars.track([1, 2, 3], "items"))
    6
    """

    def __init__(self, *, shown: bool = False) -> None:
        console = make_console(stderr=True)
        self._progress = Progress(
            BarColumn(bar_width=12),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=console,
            transient=True,
        )
        self._shown = shown and console.is_interactive
        self._open = 0

    @contextmanager
    def steps(self, total: int | None, at_work: str = "") -> Iterator[StepCallback]:
        """Open a bar of so many steps, or of nobody knows how many, and give what tells that the next one begins."""
        task = self._progress.add_task(at_work, total=total)
        begun = 0

        def step(at_work: str) -> None:
            nonlocal begun
            self._progress.update(task, completed=begun, description=at_work)
            begun += 1

        self._open += 1
        if self._shown:
            self._progress.start()
        try:
            yield step
        finally:
            self._progress.remove_task(task)
            self._open -= 1
            if self._shown and self._open == 0:  # the console, and its cursor, are given back after Ctrl-C too
                self._progress.stop()

    def track(self, items: Iterable[Item], at_work: str, total: int | None = None) -> Iterator[Item]:
        """Yield items one after the other, with a bar of how many have come."""
        if not self._shown:
            yield from items
            return
        with self.steps(total, at_work) as step:
            for item in items:
                step(at_work)
                yield item
