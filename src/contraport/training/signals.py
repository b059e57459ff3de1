"""Stop on Ctrl-C or SIGTERM after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStopped(Exception):  # noqa: N818 - control flow
    """The training stopped on request, after it saved a checkpoint."""


class StopRequest:
    """Flag set by SIGINT and SIGTERM; a second Ctrl-C interrupts without waiting for the step.

    Attributes:
        made: whether a signal arrived.
    """

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """Install the signal handlers, if in the main thread, where alone Python allows it."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def restored_signals() -> Iterator[None]:
    """Restore the handlers of signals after the block."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
