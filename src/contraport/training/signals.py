"""Ctrl-C and SIGTERM, as a wish that the training meets when its step is done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):  # noqa: N818 - it is no error
    """A training was asked to stop, and is saved."""


class StopRequest:
    """Notes that someone asked the training to stop; a second Ctrl-C does not wait for the step.

    Attributes:
        made: whether someone did.
    """

    def __init__(self) -> None:
        self.made = False

    def listen(self) -> None:
        """Take the signals from now on, where they can be taken: in the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.made and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.made = True


@contextmanager
def signals_kept() -> Iterator[None]:
    """Give the signals back as they were."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
