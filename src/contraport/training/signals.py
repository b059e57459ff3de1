"""Signal handling: Ctrl-C and SIGTERM stop a training after the current step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingStopped(Exception):  # noqa: N818 - control flow
    """Raised when the training stops on request, after it saved a checkpoint."""


class StopRequest:
    """Stop flag set by SIGINT (Ctrl-C) and SIGTERM; a second Ctrl-C interrupts without waiting for the step.

    Attributes:
        requested: whether a signal arrived.
    """

    def __init__(self) -> None:
        self.requested = False

    def listen(self) -> None:
        """Install the signal handlers; does nothing outside the main thread, where Python does not allow it."""
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Only a flag: an exception could interrupt an optimizer step or a write halfway. A second SIGTERM does nothing,
        # since a scheduler may repeat it while the checkpoint is written.
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def restored_signals() -> Iterator[None]:
    """Context manager that restores the previous signal handlers at its end."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
