"""Checkpoints: when they are written, and that each is written whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, BinaryIO

import torch

from contraport._utils.files import atomic_write
from contraport.data.streams import StreamError
from contraport.distributed import any_process, is_main_process, propagate_errors
from contraport.runs import Run
from contraport.training.loop import Callback, Loop
from contraport.training.restore import checkpoint_state
from contraport.training.signals import Stopped, StopRequest


class CheckpointFile:
    """Writes a checkpoint whole or not at all.

    Args:
        run: the folder.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def write(self, loop: Loop, path: Path) -> None:
        """Write the state of a training beside its place, then move it there with its checksum; all processes call it.

        Raises:
            UsageError: it cannot be written.
        """
        with propagate_errors():
            state = checkpoint_state(loop)
            if not is_main_process():
                return
            with self._run.writing():
                with atomic_write(path, checksum=True) as temporary, temporary.open("wb") as file:
                    _save(state, file)
                if self._run.last_checkpoint.exists():
                    self._run.replaced.delete_backup()


def _save(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    """Save; raise an error of the disk, which torch hides behind one of its own."""
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class Checkpoints(Callback):
    """Writes `checkpoints/last.ckpt` every few minutes, at the end of each epoch, and when the training is to stop.

    A checkpoint is only written between two steps of the optimizer, and holds the state after the first.

    Args:
        run: the folder.
        file: writes the checkpoints.
        minutes: between two checkpoints within an epoch.
        keep_every: epochs between two checkpoints that are kept beside the last.
        stop: whether someone requested an end.
    """

    def __init__(
        self, run: Run, file: CheckpointFile, *, minutes: float, keep_every: int | None, stop: StopRequest
    ) -> None:
        self._last = run.last_checkpoint
        self._file = file
        self._seconds = 60 * minutes
        self._keep_every = keep_every
        self._stop = stop

    def on_start(self, loop: Loop) -> None:
        """Start the clock; listen to signals."""
        self._saved_at = time.monotonic()
        self._stop.listen()

    def after_batch(self, loop: Loop) -> None:
        """Save when it is time or when someone requested an end; the end of an epoch saves by itself.

        Raises:
            Stopped: someone did.
        """
        if loop.part > 0 or loop.is_last_batch:
            return
        is_due, is_over = any_process(time.monotonic() - self._saved_at >= self._seconds, self._stop.made)
        if is_due or is_over:
            self._save(loop)
        if is_over:
            raise Stopped

    def after_epoch(self, loop: Loop) -> None:
        """Save.

        Raises:
            Stopped: someone requested an end.
        """
        self._save(loop)
        if self._keep_every is not None and loop.epoch % self._keep_every == 0:
            self._save(loop, f"epoch-{loop.epoch:04d}.ckpt")
        if any(any_process(self._stop.made)):
            raise Stopped

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        """Save where a stream broke between two steps, so that the run continues at its place."""
        if isinstance(error, StreamError) and loop.step > 0 and loop.part == 0:
            self._save(loop)

    def _save(self, loop: Loop, name: str = "last.ckpt") -> None:
        for callback in loop.callbacks:
            callback.before_save(loop)
        self._file.write(loop, self._last.with_name(name))
        self._saved_at = time.monotonic()
