"""Logging of a training run to `train.log` and the console."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from contraport._utils.progress import make_console_without_markup
from contraport.distributed import is_main_process
from contraport.runs import WritableRun

log = logging.getLogger("contraport")


@contextmanager
def _temporary_log_handlers(*handlers: logging.Handler, level: int) -> Iterator[None]:
    """Context manager that adds log handlers and sets the log level."""
    before = log.level
    log.setLevel(level)
    for handler in handlers:
        log.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
        log.setLevel(before)


@contextmanager
def console_logging(*, shown: bool) -> Iterator[None]:
    """Context manager that optionally logs INFO and above to the console."""
    handler = _ConsoleHandler(make_console_without_markup(stderr=True, quiet=not shown))
    with _temporary_log_handlers(handler, level=logging.INFO):
        yield


@contextmanager
def first_process_logging() -> Iterator[None]:
    """Context manager that silences the logs of all processes but the first."""
    with _temporary_log_handlers(level=log.level if is_main_process() else logging.CRITICAL + 1):
        yield


@contextmanager
def run_logging(run: WritableRun, console: Console) -> Iterator[None]:
    """Context manager that logs to `train.log` and the console.

    The console shows INFO and above. Only the first process logs.

    Raises:
        UsageError: `train.log` cannot be written.
    """
    if not is_main_process():
        yield
        return
    with run.translate_write_errors():
        to_file = _RaisingLogFileHandler(run)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    try:
        with _temporary_log_handlers(to_file, _ConsoleHandler(console), level=logging.DEBUG):
            try:
                yield
            except (KeyboardInterrupt, FloatingPointError) as reason:
                log.debug("stopped: %s" if not str(reason).startswith("stopped") else "%s", reason)
                raise
    finally:
        with run.translate_write_errors():
            to_file.close()


class _ConsoleHandler(logging.Handler):
    """Handler that prints to a console without wrapping lines."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(self.format(record), highlight=False, soft_wrap=True)


class _RaisingLogFileHandler(logging.FileHandler):
    """Log file handler that raises `UsageError` if a line cannot be written."""

    def __init__(self, run: WritableRun) -> None:
        super().__init__(run.log_path, encoding="utf-8")
        self._run = run

    def handleError(self, record: logging.LogRecord) -> None:
        """Raise the error of a failed log write, with `OSError` converted to `UsageError`."""
        with self._run.translate_write_errors():
            raise
