"""Restoring a training: a new run folder, or one that is taken back to its last checkpoint.

A checkpoint is a dictionary:

```
epoch, batch, step     the progress: whole epochs, batches of the next one, and optimizer steps in all
pipeline               the state of all that learns or remembers
optimizer, schedule    their states
callbacks              by the name of its class, the state of each callback that has one
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
from contraport.runs import Run, read
from contraport.training.config import Settings
from contraport.training.loop import Loop, Position
from contraport.training.sharding import shard_optimizer_state, shard_state, whole

log = logging.getLogger("contraport.training")


@hint_on_error("contraport docs troubleshooting resume-is-refused")
def create_or_resume_run(run: Run, settings: Settings, record: SplitRecord | None = None) -> Position:
    """Make the run's folder; or, to resume, take it back to its last checkpoint.

    Args:
        run: the folder.
        settings: of the training.
        record: of its items, which on resume are to be those that it began with; None of a stream.

    Raises:
        UsageError: the folder is in the way or cannot be written to, or the checkpoint is corrupt or of other items;
            nothing was changed.
    """
    if not settings.resume:
        with run.writing():
            _remove_halves(run)
            Run.create(run.path, settings.kept(), overwrite=settings.overwrite)
            if record is not None:
                run.save_split(record)
        return Position()
    with run.writing():
        run.replaced.settle()
    position, before = _position(run), run.split()
    if record is not None and before is None:
        log.warning("%s is of an earlier version: whether its items are those of before is not checked", run.path)
        run.save_split(record)
    check(
        record is None or before is None or record.fingerprint == before.fingerprint,
        f"data: the run in {run.path} was trained on other items than those that came; on resume they must be the "
        "same.",
    )
    check(
        position.epoch <= settings.epochs,
        f"epochs: {run.last_checkpoint} has done {position.epoch}, more than the {settings.epochs} asked for.",
    )
    with run.writing():
        _remove_halves(run)
        drop_metrics_after(run, position)
        if position.epoch < settings.epochs:
            for outdated in (run.evaluation_path, run.samples_path, run.items_path):
                outdated.unlink(missing_ok=True)
        write_text(run.config_path, yaml.safe_dump(settings.kept(), sort_keys=False, allow_unicode=True))
    return position


def drop_metrics_after(run: Run, position: Position) -> None:
    """Remove the metrics of steps after a position."""
    if run.metrics_path.exists():
        run.write_metrics(row for row in run.metrics() if row["step"] <= position.step)


@contextmanager
def rollback_on_failure(run: Run) -> Iterator[None]:
    """Put the run that this one replaces back where this one fails before it has a checkpoint.

    Where it was stopped, or its loss was not finite, both are kept: the new one has the reason, and can be resumed.
    """
    try:
        yield
    except FloatingPointError:
        raise
    except Exception:
        if is_main_process():
            with run.writing():
                run.replaced.roll_back()
        raise


def _remove_halves(run: Run) -> None:
    """Remove the temporary files of a killed process."""
    for folder in (run.path, run.checkpoints, run.model_path):
        for half in leftover_files(folder):
            half.unlink()
    for half in run.path.glob(".model-*"):
        shutil.rmtree(half)


def checkpoint_state(loop: Loop) -> dict[str, Any]:
    """Return what a checkpoint holds of a training."""
    states = {type(callback).__name__: callback.state() for callback in loop.callbacks}
    return {
        "epoch": loop.epoch,
        "batch": loop.batch,
        "step": loop.step,
        "pipeline": whole(loop.trained.state_dict()),
        "optimizer": whole(loop.optimizer.state_dict()),
        "schedule": loop.schedule.state_dict(),
        "callbacks": {name: state for name, state in states.items() if state is not None},
    }


def restore(loop: Loop, state: dict[str, Any]) -> None:
    """Put a training where a checkpoint was written.

    Raises:
        Exception: the checkpoint is of another training.
    """
    loop.place(Position(state["epoch"], state["batch"], state["step"]))
    loop.trained.load_state_dict(shard_state(state["pipeline"], like=loop.trained.state_dict()))
    loop.optimizer.load_state_dict(state["optimizer"])
    _shape_as_weights(loop.optimizer)
    shard_optimizer_state(loop.optimizer)
    loop.schedule.load_state_dict(state["schedule"])
    for callback in loop.callbacks:
        kept = state["callbacks"].get(type(callback).__name__)
        if kept is not None:
            callback.restore(kept)


def _shape_as_weights(optimizer: Optimizer) -> None:
    """Give what an optimizer keeps of a learned number its shape, (1,): older checkpoints have ()."""
    for weights, kept in optimizer.state.items():
        for name, value in kept.items():
            if name != "step" and isinstance(value, Tensor) and value.ndim == 0 and weights.shape == (1,):
                kept[name] = value.reshape(1)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, on the CPU; nothing is unpickled.

    Raises:
        Exception: it is not what was written.
    """
    check_checksum(path)
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return _of_lightning(state) if "pytorch-lightning_version" in state else state


_PREFIX = "pipeline."


def _of_lightning(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint of version 0.1.0, which Lightning wrote, in the form of today."""
    loop, callbacks = state["loops"]["fit_loop"], dict(state["callbacks"])
    epochs, batches = (loop[name]["current"] for name in ("epoch_progress", "epoch_loop.batch_progress"))
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
    """Return what can be done where the last checkpoint is of no use."""
    last, earlier = run.last_checkpoint.name, sorted(file.name for file in run.checkpoints.glob("epoch-*.ckpt"))
    other = f"copy {earlier[-1]} over {last}, and its checksum over that of {last}, or " if earlier else ""
    return f"; {other}train anew with {format_options(overwrite=True)}."


def _position(run: Run) -> Position:
    """Return the progress of the last checkpoint."""
    if not run.last_checkpoint.exists():
        return Position()

    def reader(path: Path) -> Position:
        state = read_checkpoint(path)
        position = Position(state["epoch"], state["batch"], state["step"])
        if not all(isinstance(number, int) and number >= 0 for number in position):
            raise ValueError(f"expected whole numbers of epochs, batches and steps, got {tuple(position)}")
        return position

    found: Position = read(run.last_checkpoint, reader, checkpoint_remedy(run))
    return found
