"""Progress bars for nested steps, and consoles of the package `rich`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column

T = TypeVar("T")
BeginStep = Callable[[str], None]  # argument: description of the step that begins


def make_console_without_markup(*, stderr: bool = False, quiet: bool = False, width: int | None = None) -> Console:
    """Create a console of `rich` that prints names such as `[red]` unchanged.

    All consoles of the package are created here.

    >>> make_console_without_markup(width=40).print("[/x]1 :cat:")
    [/x]1 :cat:
    """
    return Console(stderr=stderr, quiet=quiet, width=width, markup=False, emoji=False)


class ProgressBars:
    """Nested progress bars on standard error, shown only on a terminal.

    A bar disappears when it ends. All bars share one display, as two displays would overwrite each other.

    >>> bars = ProgressBars()
    >>> with bars.open_step_bar(2) as begin_step:
    ...     begin_step("kNN")
    ...     sum(bars.track([1, 2, 3], "items"))
    6
    """

    def __init__(self, *, shown: bool = False) -> None:
        console = make_console_without_markup(stderr=True)
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
    def open_step_bar(self, total: int | None, description: str = "") -> Iterator[BeginStep]:
        """Show a progress bar and yield a callback that begins the next step."""
        task = self._progress.add_task(description, total=total)
        started = 0

        def begin_step(description: str) -> None:
            nonlocal started
            self._progress.update(task, completed=started, description=description)
            started += 1

        self._open += 1
        if self._shown:
            self._progress.start()
        try:
            yield begin_step
        finally:
            self._progress.remove_task(task)
            self._open -= 1
            if self._shown and self._open == 0:  # restores the cursor after Ctrl-C too
                self._progress.stop()

    def track(self, items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
        """Iterate over items with a progress bar."""
        if not self._shown:
            yield from items
            return
        with self.open_step_bar(total, description) as begin_step:
            for item in items:
                begin_step(description)
                yield item
