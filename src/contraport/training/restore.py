"""Checkpoint state and resuming: creates a run folder, or resets an existing one to its last checkpoint.

A checkpoint is a dictionary:

```
epoch, batch, step     progress: complete epochs, batches of the current epoch, optimizer steps in total
pipeline               parameters and buffers
optimizer, schedule    their states
callbacks              states of callbacks, by class name
```
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor
from torch.optim import Optimizer

from contraport._utils.files import check_checksum, leftover_files, write_text
from contraport._utils.formatting import format_options
from contraport.data.split_record import SplitRecord
from contraport.distributed import is_main_process
from contraport.errors import check, hint_on_error
from contraport.runs import Run, read_run_file
from contraport.training.config import Settings
from contraport.training.loop import Loop, Position
from contraport.training.sharding import gather_state, shard_optimizer_state, shard_state

log = logging.getLogger("contraport.training")


@hint_on_error("contraport docs troubleshooting resume-is-refused")
def create_or_resume_run(run: Run, settings: Settings, record: SplitRecord | None = None) -> Position:
    """Create a run folder, or reset an existing one to its last checkpoint; return the position of the training.

    Args:
        run: the run folder.
        settings: settings of the training.
        record: digests of the items, which must not change on resume; None for a stream.

    Raises:
        UsageError: the folder is occupied or not writable, or the checkpoint is corrupt or of other items; nothing was
            changed.
    """
    if not settings.resume:
        with run.translate_write_errors():
            _delete_leftovers(run)
            Run.create(run.path, settings.to_config(), overwrite=settings.overwrite)
            if record is not None:
                run.save_split_record(record)
        return Position()
    with run.translate_write_errors():
        run.backup.finish_interrupted_operation()
    position, before = _position(run), run.split_record()
    if record is not None and before is None:
        log.warning("%s has no record of its items (version 0.1.0): they are not checked for changes", run.path)
        run.save_split_record(record)
    check(
        record is None or before is None or record.fingerprint == before.fingerprint,
        f"data: must be the items that the run in {run.path} was trained on.",
        "changed",
    )
    check(
        position.epoch <= settings.epochs,
        f"epochs: must be at least {position.epoch}, the epochs done in {run.last_checkpoint}, got {settings.epochs}.",
        "below_checkpoint",
    )
    # Below all checks: a refused resume changes nothing. Rows after the checkpoint go, since their steps run again.
    with run.translate_write_errors():
        _delete_leftovers(run)
        drop_metrics_after(run, position)
        if position.epoch < settings.epochs:
            # An evaluation of the shorter training would be taken for one of the longer.
            for outdated in (run.evaluation_path, run.samples_path, run.items_path):
                outdated.unlink(missing_ok=True)
        write_text(run.config_path, yaml.safe_dump(settings.to_config(), sort_keys=False, allow_unicode=True))
    return position


def drop_metrics_after(run: Run, position: Position) -> None:
    """Delete the rows of `metrics.jsonl` whose steps come after a position."""
    if run.metrics_path.exists():
        run.write_metrics(row for row in run.metrics() if row["step"] <= position.step)


@contextmanager
def rollback_on_failure(run: Run) -> Iterator[None]:
    """Context manager that restores the replaced run if the new one fails before its first checkpoint.

    After a stop or a loss that is not finite both are kept: the new run holds the cause, and can be resumed.
    """
    try:
        yield
    except FloatingPointError:
        raise
    except Exception:
        if is_main_process():
            with run.translate_write_errors():
                run.backup.roll_back()
        raise


def _delete_leftovers(run: Run) -> None:
    """Delete the temporary files that a killed process left in a run folder."""
    for folder in (run.path, run.checkpoints, run.model_path):
        for half in leftover_files(folder):
            half.unlink()
    for half in run.path.glob(".model-*"):
        shutil.rmtree(half)


def collect_checkpoint_state(loop: Loop) -> dict[str, Any]:
    """Return the state of a training loop as the dictionary that a checkpoint stores."""
    # No random state: each step seeds its own generators from seed and step, which makes resuming exact.
    states = {type(callback).__name__: callback.state() for callback in loop.callbacks}
    return {
        "epoch": loop.completed_epochs,
        "batch": loop.completed_batches,
        "step": loop.step,
        "pipeline": gather_state(loop.module.state_dict()),
        "optimizer": gather_state(loop.optimizer.state_dict()),
        "schedule": loop.schedule.state_dict(),
        "callbacks": {name: state for name, state in states.items() if state is not None},
    }


def restore(loop: Loop, state: dict[str, Any]) -> None:
    """Restore the state of a checkpoint into a training loop.

    Raises:
        Exception: the checkpoint belongs to another training.
    """
    loop.set_position(Position(state["epoch"], state["batch"], state["step"]))
    loop.module.load_state_dict(shard_state(state["pipeline"], like=loop.module.state_dict()))
    loop.optimizer.load_state_dict(state["optimizer"])
    _reshape_scalar_states(loop.optimizer)  # before sharding, which compares shapes
    shard_optimizer_state(loop.optimizer)
    # Restores only the counters: the function of the step is that of the settings, so that a training resumed with more
    # epochs follows the longer schedule.
    loop.schedule.load_state_dict(state["schedule"])
    for callback in loop.callbacks:
        callback_state = state["callbacks"].get(type(callback).__name__)
        if callback_state is not None:
            callback.restore(callback_state)


def _reshape_scalar_states(optimizer: Optimizer) -> None:
    """Reshape the optimizer state of learned scalars to (1,); checkpoints of version 0.1.0 have shape ()."""
    for weights, state in optimizer.state.items():
        for name, value in state.items():
            if name != "step" and isinstance(value, Tensor) and value.ndim == 0 and weights.shape == (1,):
                state[name] = value.reshape(1)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint to the CPU, after verifying its checksum and without unpickling code.

    Raises:
        Exception: the file is corrupt.
    """
    check_checksum(path)  # first: a damaged file can load without an error, with wrong weights
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return _from_lightning(state) if "pytorch-lightning_version" in state else state


_PREFIX = "pipeline."


def _from_lightning(state: dict[str, Any]) -> dict[str, Any]:
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
        "pipeline": {name.removeprefix(_PREFIX): value for name, value in state["state_dict"].items()},
        "optimizer": optimizer,
        "schedule": schedule,
        "callbacks": callbacks,
    }


def checkpoint_remedy(run: Run) -> str:
    """Return the end of an error message: what to do about an unusable last checkpoint."""
    last, earlier = run.last_checkpoint.name, sorted(file.name for file in run.checkpoints.glob("epoch-*.ckpt"))
    other = f"copy {earlier[-1]} over {last}, and its checksum over that of {last}, or " if earlier else ""
    return f"; {other}restart with {format_options(overwrite=True)}."


def _position(run: Run) -> Position:
    """Return the position that the last checkpoint of a run records."""
    if not run.last_checkpoint.exists():
        return Position()

    def reader(path: Path) -> Position:
        state = read_checkpoint(path)
        position = Position(state["epoch"], state["batch"], state["step"])
        if not all(isinstance(number, int) and number >= 0 for number in position):
            raise ValueError(f"epochs, batches and steps must be integers >= 0, got {tuple(position)}")
        return position

    return read_run_file(run.last_checkpoint, reader, checkpoint_remedy(run))
