"""Checkpoints of a training run, written regularly and when it is stopped.

A checkpoint is a dictionary:

```
epoch, batch, step     progress: complete epochs, batches of the current epoch, optimizer steps in total
pipeline               parameters and buffers
optimizer, schedule    their states
callbacks              states of callbacks, by class name
```
"""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from contraport._utils.files import atomic_write, check_checksum_if_present
from contraport._utils.formatting import format_options
from contraport.data.streams import StreamReadError
from contraport.distributed import any_across_processes, is_main_process, raise_on_one_rank, stop_all_on_error
from contraport.errors import UsageError, check, one_line_reason
from contraport.runs import WritableRun, read_run_file
from contraport.training.data_parallelism import gather_sharded_state, shard_like
from contraport.training.loop import Callback, Loop, Position

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals on which a training run writes a checkpoint and stops."""


class TrainingStopped(Exception):  # noqa: N818 - control flow
    """Raised when the training stops on request, after it saved a checkpoint."""


class StopRequest:
    """Stop flag that SIGINT (Ctrl-C) and SIGTERM set."""

    def __init__(self) -> None:
        self.requested = False

    def install_signal_handlers(self) -> None:
        """Install signal handlers by which SIGINT and SIGTERM request a stop."""
        if threading.current_thread() is threading.main_thread():  # Python allows handlers in no other thread
            for number in STOP_SIGNALS:
                signal.signal(number, self._handle_signal)

    def _handle_signal(self, signum: int, frame: FrameType | None) -> None:
        """Request a stop, or raise `KeyboardInterrupt` on a second SIGINT."""
        # Only a flag: an exception could interrupt an optimizer step or a write halfway. A second SIGTERM does nothing,
        # since a scheduler may repeat it while the checkpoint is written.
        if self.requested and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True


class CheckpointAndStopCallback(Callback):
    """Callback that regularly writes a checkpoint, and stops on Ctrl-C or SIGTERM.

    It writes `checkpoints/last.ckpt` every few minutes, after each epoch and before a requested stop. Checkpoints are
    written only between two optimizer steps, since accumulated gradients are not saved.

    Args:
        epochs_between_kept: number of epochs between two checkpoints that are kept besides the last; None: none is.
    """

    def __init__(
        self, run: WritableRun, *, minutes_between: float, epochs_between_kept: int | None, stop: StopRequest
    ) -> None:
        self._run = run
        self._seconds = 60 * minutes_between
        self._epochs_between_kept = epochs_between_kept
        self._stop = stop
        self._saved_at = time.monotonic()

    def after_batch(self, loop: Loop) -> None:
        """Save a checkpoint if due, and raise `TrainingStopped` after Ctrl-C or SIGTERM."""
        # The last batch is followed by after_epoch, which saves.
        if loop.completed_micro_batches > 0 or loop.is_last_batch:
            return
        # Clocks and signals differ between processes: all act as soon as one of them has to.
        is_due, is_over = any_across_processes(time.monotonic() - self._saved_at >= self._seconds, self._stop.requested)
        if is_due or is_over:
            self._save_then_delete_replaced_run(loop)
        if is_over:
            raise TrainingStopped

    def after_epoch(self, loop: Loop) -> None:
        # Before the last checkpoint: a run that is killed in between repeats the epoch, and thus keeps it.
        if self._epochs_between_kept is not None and loop.completed_epochs % self._epochs_between_kept == 0:
            self._save_then_delete_replaced_run(loop, f"epoch-{loop.completed_epochs:04d}.ckpt")
        self._save_then_delete_replaced_run(loop)
        if any(any_across_processes(self._stop.requested)):
            raise TrainingStopped

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        """Save a checkpoint if reading a stream failed between two steps."""
        if isinstance(error, StreamReadError) and loop.step > 0 and loop.completed_micro_batches == 0:
            self._save_then_delete_replaced_run(loop)

    def _save_then_delete_replaced_run(self, loop: Loop, name: str = "last.ckpt") -> None:
        """Save a checkpoint, then delete the backup of the run that was replaced."""
        # Before the write: the finite guard raises here if a step since its last reading was not finite.
        for callback in loop.callbacks:
            callback.before_save(loop)
        write_checkpoint(self._run, loop, self._run.last_checkpoint.with_name(name))
        with stop_all_on_error(), self._run.translate_write_errors():
            # Only now can the new run be resumed, so only now is the run that it replaced given up.
            if is_main_process() and self._run.last_checkpoint.exists() and self._run.backup.is_complete():
                self._run.backup.delete()
        self._saved_at = time.monotonic()


def write_checkpoint(run: WritableRun, loop: Loop, path: Path) -> None:
    """Write the state of a training run and its checksum.

    All processes must call it. The write is atomic: a reader sees the old or the new file, never a part.

    Raises:
        UsageError: the folder is not writable.
    """
    with stop_all_on_error():
        # Sharded tensors are gathered, so all processes take part; only the first writes.
        # No random state: each step seeds its own generators from seed and step, which makes resuming exact.
        states = {callback.checkpoint_key: callback.state() for callback in loop.callbacks}
        checkpoint = {
            "epoch": loop.completed_epochs,
            "batch": loop.completed_batches,
            "step": loop.step,
            "pipeline": gather_sharded_state(loop.module.state_dict()),
            "optimizer": gather_sharded_state(loop.optimizer.state_dict()),
            "schedule": loop.schedule.state_dict(),
            "callbacks": {name: state for name, state in states.items() if state is not None},
        }
        if not is_main_process():
            return
        with run.translate_write_errors(), atomic_write(path, checksum=True) as temporary, temporary.open("wb") as file:
            _save_or_raise_os_error(checkpoint, file)


def _save_or_raise_os_error(checkpoint: dict[str, Any], file: BinaryIO) -> None:
    """Save a checkpoint, and raise a failed write as `OSError`."""
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def restore_last_checkpoint(loop: Loop, run: WritableRun) -> None:
    """Restore the last checkpoint of a run into a training loop.

    Raises:
        UsageError: the checkpoint belongs to another training run.
    """
    try:
        state = read_checkpoint(run.last_checkpoint)
        loop.set_completed_counts(Position(state["epoch"], state["batch"], state["step"]))
        own_values = loop.module.state_dict()
        loop.module.load_state_dict(
            {name: shard_like(value, own_values.get(name)) for name, value in state["pipeline"].items()}
        )
        loop.optimizer.load_state_dict(state["optimizer"])
        for weights, own in loop.optimizer.state.items():
            for name, value in own.items():
                if name != "step" and isinstance(value, Tensor) and value.ndim == 0 and weights.shape == (1,):
                    own[name] = value.reshape(1)  # checkpoints of version 0.1.0 have learned scalars of shape ()
                if isinstance(value, Tensor) and own[name].shape == weights.shape:
                    own[name] = shard_like(own[name], weights)
        # Restores only the counters: the function of the step is that of the settings, so that a training run resumed
        # with more epochs follows the longer schedule.
        loop.schedule.load_state_dict(state["schedule"])
        for callback in loop.callbacks:
            callback_state = state["callbacks"].get(callback.checkpoint_key)
            if callback_state is not None:
                callback.restore(callback_state)
    except Exception as error:  # a checkpoint of another training run raises arbitrary exceptions
        reason, remedy = one_line_reason(error), format_bad_checkpoint_remedy_clause(run)
        message = f"resume: {run.last_checkpoint} does not fit the run: {reason}{remedy}"
        raise_on_one_rank(UsageError(message, kind="checkpoint"))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint onto the CPU without unpickling code, after verifying its checksum.

    Raises:
        Exception: the file is corrupt.
    """
    check_checksum_if_present(path)  # first: a damaged file can load without an error, with wrong weights
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return _convert_lightning_checkpoint(state) if "pytorch-lightning_version" in state else state


def _convert_lightning_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Convert a checkpoint of version 0.1.0, which Lightning wrote, to the current format."""
    loop, callbacks = state["loops"]["fit_loop"], dict(state["callbacks"])
    epochs, batches = (loop[name]["current"] for name in ("epoch_progress", "epoch_loop.batch_progress"))
    # Lightning counts the batches of a complete epoch until the next one begins.
    is_within = epochs["ready"] > epochs["processed"]
    (optimizer,), (schedule,) = state["optimizer_states"], state["lr_schedulers"]
    if "Looking" in callbacks:
        callbacks["AuditCallback"] = callbacks.pop("Looking")
    return {
        "epoch": epochs["processed"],
        "batch": batches["processed"] if is_within else 0,
        "step": state["global_step"],
        "pipeline": {name.removeprefix("pipeline."): value for name, value in state["state_dict"].items()},
        "optimizer": optimizer,
        "schedule": schedule,
        "callbacks": callbacks,
    }


def format_bad_checkpoint_remedy_clause(run: WritableRun) -> str:
    """Return the advice that ends an error message about an unusable last checkpoint."""
    last, earlier = run.last_checkpoint.name, sorted(file.name for file in run.checkpoints.glob("epoch-*.ckpt"))
    other = f"copy {earlier[-1]} over {last}, and its checksum over that of {last}, or " if earlier else ""
    anew = f"delete {run.path} and resume: {run.resume_advice}" if run.parent_command else ""
    return f"; {other}{anew or f'restart with {format_options(overwrite=True)}'}."


def read_resume_position_or_zero(run: WritableRun) -> Position:
    """Read the epoch and step to resume from, zero if no checkpoint exists.

    Raises:
        UsageError: the checkpoint is corrupt, or was written and is missing.
    """
    if not run.last_checkpoint.exists():
        message = f"resume: {run.last_checkpoint} is missing{format_bad_checkpoint_remedy_clause(run)}"
        # Each epoch ends with a last checkpoint. A run that is killed between its first two writes has the checkpoint
        # of epoch 1, but no last one yet.
        has_later_epoch = any(file.name > "epoch-0001.ckpt" for file in run.checkpoints.glob("epoch-*.ckpt"))
        rows = run.metrics_rows() if run.metrics_path.exists() else []
        has_later_epoch = has_later_epoch or any((row.get("epoch") or 0) > 1 for row in rows)
        check(not has_later_epoch and not run.trained_path.exists(), message, "not_found")
        return Position()

    def reader(path: Path) -> Position:
        state = read_checkpoint(path)
        position = Position(state["epoch"], state["batch"], state["step"])
        if not all(isinstance(number, int) and number >= 0 for number in position):
            raise ValueError(f"epochs, batches and steps must be integers >= 0, got {tuple(position)}")
        return position

    return read_run_file(run.last_checkpoint, reader, format_bad_checkpoint_remedy_clause(run))
