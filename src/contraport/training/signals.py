"""Stop on Ctrl-C or SIGTERM after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - it is no error
    """The training was requested to stop, and is saved."""


class StopRequest:
    """A request to stop, made by a signal; a second Ctrl-C does not wait for the step.

    Attributes:
        made: whether there was a signal.
    """

    def __init__(self) -> None:
        self.made = False

    def listen(self) -> None:
        """Handle the signals from now on, where Python can: in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.made and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.made = True


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
