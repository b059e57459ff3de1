"""Checkpoint callback, and the writer of checkpoint files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, BinaryIO

import torch

from contraport._utils.files import atomic_write
from contraport.data.streams import StreamReadError
from contraport.distributed import any_process, is_main_process, propagate_errors
from contraport.runs import Run
from contraport.training.loop import Callback, Loop
from contraport.training.restore import collect_checkpoint_state
from contraport.training.signals import StopRequest, TrainingStopped


class CheckpointWriter:
    """Writes checkpoints atomically: a reader sees the old or the new file, never a part.

    Args:
        run: the run folder.
    """

    def __init__(self, run: Run) -> None:
        self._run = run

    def write(self, loop: Loop, path: Path) -> None:
        """Write the state of the training and its checksum; a collective operation that all processes must call.

        Raises:
            UsageError: the folder is not writable.
        """
        with propagate_errors():
            state = collect_checkpoint_state(
                loop
            )  # gathers shards, so that all processes take part; only the first writes
            if not is_main_process():
                return
            with self._run.translate_write_errors():
                with atomic_write(path, checksum=True) as temporary, temporary.open("wb") as file:
                    _save(state, file)
                # Only now can the new run be resumed, so only now is the replaced one given up.
                if self._run.last_checkpoint.exists():
                    self._run.backup.delete_backup()


def _save(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    """Call `torch.save`, and raise the `OSError` of a full disk, which torch hides behind a `RuntimeError`."""
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class Checkpoints(Callback):
    """Callback that writes `checkpoints/last.ckpt` every few minutes, after each epoch and before a requested stop.

    Checkpoints are written only between two optimizer steps, since accumulated gradients are not saved.

    Args:
        run: the run folder.
        file: writes the checkpoints.
        minutes: minutes between two checkpoints within an epoch.
        keep_every: number of epochs between two checkpoints that are kept in addition to the last; None: none.
        stop: request to stop by a signal.
    """

    def __init__(
        self, run: Run, file: CheckpointWriter, *, minutes: float, keep_every: int | None, stop: StopRequest
    ) -> None:
        self._last = run.last_checkpoint
        self._file = file
        self._seconds = 60 * minutes
        self._keep_every = keep_every
        self._stop = stop

    def on_start(self, loop: Loop) -> None:
        self._saved_at = time.monotonic()
        self._stop.listen()

    def after_batch(self, loop: Loop) -> None:
        """Write a checkpoint if one is due or a stop was requested.

        Raises:
            TrainingStopped: a stop was requested.
        """
        if (
            loop.completed_micro_batches > 0 or loop.is_last_batch
        ):  # the last batch is followed by after_epoch, which saves
            return
        # Clocks and signals differ between processes: all act as soon as one of them has to.
        is_due, is_over = any_process(time.monotonic() - self._saved_at >= self._seconds, self._stop.requested)
        if is_due or is_over:
            self._save(loop)
        if is_over:
            raise TrainingStopped

    def after_epoch(self, loop: Loop) -> None:
        """Write a checkpoint after each epoch.

        Raises:
            TrainingStopped: a stop was requested.
        """
        self._save(loop)
        if self._keep_every is not None and loop.completed_epochs % self._keep_every == 0:
            self._save(loop, f"epoch-{loop.completed_epochs:04d}.ckpt")
        if any(any_process(self._stop.requested)):
            raise TrainingStopped

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        """Write a checkpoint if a stream of data failed between two steps, so that the run can resume there."""
        if isinstance(error, StreamReadError) and loop.step > 0 and loop.completed_micro_batches == 0:
            self._save(loop)

    def _save(self, loop: Loop, name: str = "last.ckpt") -> None:
        # Before the write: the finite guard raises here if a step since its last reading was not finite.
        for callback in loop.callbacks:
            callback.before_save(loop)
        self._file.write(loop, self._last.with_name(name))
        self._saved_at = time.monotonic()
