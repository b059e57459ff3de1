"""Checkpoints: when they are written, and that each is written whole."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, BinaryIO

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from contraport.data.streams import StreamBroke
from contraport.distributed import anywhere, together
from contraport.errors import UsageError
from contraport.files import replacing
from contraport.runs import Run
from contraport.training.loop.signals import Stopped, StopRequest


class CheckpointFile(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._failure: Exception | None = None
        self._run = run

    def write(self, trainer: Trainer, path: Path) -> None:
        """Save the state of the training; all processes call it.

        Raises:
            UsageError: it cannot be written.
        """
        with together():
            trainer.save_checkpoint(path)
            if self._failure is not None:
                raise self._failure

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write it beside its place, and then move it there with its checksum; `write` tells of a failure.

        Lightning calls it in the first process, for which the others wait.
        """
        try:
            with self._run.writing():
                with replacing(Path(path), checksum=True) as temporary, temporary.open("wb") as file:
                    _save(checkpoint, file)
                if self._run.last_checkpoint.exists():
                    self._run.replaced.let_go()
        except UsageError as failure:
            self._failure = failure


def _save(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    """Save, and let an error of the disk through, which torch hides behind one of its own."""
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


class Checkpoints(Callback):
    """Writes `checkpoints/last.ckpt` every few minutes, at the end of each epoch, and when the training is to stop.

    A checkpoint is only taken between two steps of the optimiser, and what it holds is the state after the first.

    Args:
        run: the folder.
        file: what writes the checkpoints.
        minutes: between two checkpoints within an epoch.
        keep_every: epochs between two checkpoints that are kept beside the last.
        stop: whether someone asked for an end.
    """

    def __init__(
        self, run: Run, file: CheckpointFile, *, minutes: float, keep_every: int | None, stop: StopRequest
    ) -> None:
        self._last = run.last_checkpoint
        self._file = file
        self._seconds = 60 * minutes
        self._keep_every = keep_every
        self._stop = stop
        self._stepped = False
        self._between = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and listen, after Lightning did, to who wants an end."""
        self._saved_at = time.monotonic()
        self._stop.listen()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Note that the batch ends a step, which it need not where gradients of several are added up."""
        self._stepped = True

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when it is time or when someone asked for an end; the end of an epoch saves by itself.

        Raises:
            Stopped: someone did.
        """
        stepped, self._stepped = self._stepped, False
        self._between = stepped
        if not stepped or trainer.is_last_batch:
            return
        is_due, is_over = anywhere(time.monotonic() - self._saved_at >= self._seconds, self._stop.made)
        if is_due or is_over:
            self._save(trainer)
        if is_over:
            raise Stopped

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save.

        Raises:
            Stopped: someone asked for an end.
        """
        self._save(trainer)
        epoch = trainer.current_epoch + 1
        if self._keep_every is not None and epoch % self._keep_every == 0:
            self._save(trainer, f"epoch-{epoch:04d}.ckpt")
        if any(anywhere(self._stop.made)):
            raise Stopped

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save where a stream broke between two steps, so that the run goes on at its place."""
        if isinstance(exception, StreamBroke) and trainer.global_step > 0 and self._between:
            self._save(trainer)

    def _save(self, trainer: Trainer, name: str = "last.ckpt") -> None:
        self._file.write(trainer, self._last.with_name(name))
        self._saved_at = time.monotonic()
