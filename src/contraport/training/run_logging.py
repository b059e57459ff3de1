"""Logging of a training: all of it to `train.log`, the essentials to the console."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from contraport._utils.progress import make_console
from contraport.distributed import is_main_process
from contraport.runs import Run

log = logging.getLogger("contraport")


@contextmanager
def console_logging(*, progress: bool) -> Iterator[None]:
    """Send what the package logs at INFO and above to the console alone, which is silent on demand."""
    level = log.level
    log.setLevel(logging.INFO)
    try:
        with _handled_by(_ToConsole(make_console(stderr=True, quiet=not progress))):
            yield
    finally:
        log.setLevel(level)


@contextmanager
def first_process_logging() -> Iterator[None]:
    """Of several processes, let only the first log while the block runs: all of them see the same."""
    level = log.level
    if not is_main_process():
        log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def run_logging(run: Run, *, progress: bool) -> Iterator[Console]:
    """Send what the package logs to `train.log`, and INFO and above to the console too, which is silent on demand.

    Of several processes only the first does, see `first_process_logging`.

    Raises:
        UsageError: `train.log` cannot be written.
    """
    if not is_main_process():
        yield make_console(quiet=True)
        return
    console = make_console(stderr=True, quiet=not progress)
    with run.writing():
        to_file = _LogFile(run)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    to_console = _ToConsole(console)
    level = log.level
    log.setLevel(logging.DEBUG)
    try:
        with _handled_by(to_file, to_console):
            try:
                yield console
            except (KeyboardInterrupt, FloatingPointError) as reason:
                log.debug("stopped: %s", reason)
                raise
    finally:
        log.setLevel(level)
        with run.writing():
            to_file.close()


@contextmanager
def _handled_by(*handlers: logging.Handler) -> Iterator[None]:
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)


class _ToConsole(logging.Handler):
    """A console, the lines of which are as long as they are."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), highlight=False, soft_wrap=True)


class _LogFile(logging.FileHandler):
    """A file whose lines are written, or the training stops."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.log_path, encoding="utf-8")
        self._run = run

    def handleError(self, record: logging.LogRecord) -> None:
        with self._run.writing():
            raise
