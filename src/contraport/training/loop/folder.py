"""The run folder at the two ends of a training: opened, or taken back to its checkpoint; given its model."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from safetensors import SafetensorError

from contraport.encoders import Model
from contraport.errors import UsageError, check
from contraport.files import check_checksum, replacing_files, write_text
from contraport.runs import Run, read
from contraport.runs.settings import Settings

_NOT_IN_NAMES = re.compile(r"(?:[^\w.]|\.{2,})+")


class Position(NamedTuple):
    """How far a training is: whole epochs, batches of the next one, and steps in all, that are done."""

    epoch: int
    batch: int
    step: int


def default_path(data: str, method: str) -> Path:
    """Return the folder of a run that was given none, named after its data and its method.

    Of what the data are called only letters, digits, ``_`` and single dots are kept, joined by ``-``.

    >>> default_path("shards/train-{000..009}.tar", "gca-uot").as_posix()
    'runs/train-000-009-gca-uot'
    """
    place = Path(os.path.abspath(data))  # "." has no name of its own
    name = _NOT_IN_NAMES.sub("-", place.name if place.is_dir() else place.stem).strip("-.")
    return Path("runs", f"{name or 'data'}-{method}")


def last_checkpoint(run: Run) -> Path:
    """Return the path of the checkpoint that resuming takes."""
    return run.checkpoints / "last.ckpt"


def nonfinite_checkpoint(run: Run) -> Path:
    """Return the path of the state before a step that was not finite."""
    return run.checkpoints / "nonfinite.ckpt"


def nonfinite_items(run: Run) -> Path:
    """Return the path of the items of a step that was not finite."""
    return run.checkpoints / "nonfinite.npz"


def how_to_go_on(run: Run) -> str:
    """Return the command that resumes a run."""
    return f"contraport train --resume --out {run.path}"


@contextmanager
def writing(run: Run) -> Iterator[None]:
    """Say of a file that cannot be written what is left and what to do.

    Raises:
        UsageError: it cannot: the disk is full, or the folder not to be written to.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        kept = f" What was saved before is whole: mend it, and go on with: {how_to_go_on(run)}"
        remedy = kept if last_checkpoint(run).exists() else ""
        raise UsageError(f"out: {run.path} cannot be written to: {error}.{remedy}") from error


def open_run(run: Run, settings: Settings) -> Position:
    """Make the run's folder; or, to resume, take it back to its last checkpoint.

    Raises:
        UsageError: the folder is in the way or cannot be written to, or the checkpoint is corrupt; nothing was changed.
    """
    if not settings.resume:
        with writing(run):
            Run.create(run.path, settings.kept(), overwrite=settings.overwrite)
        return Position(epoch=0, batch=0, step=0)
    position = _position(run)
    check(
        position.epoch <= settings.epochs,
        f"epochs: {last_checkpoint(run)} has done {position.epoch}, more than the {settings.epochs} asked for.",
    )
    with writing(run):
        _remove_halves(run)
        if run.metrics_path.exists():
            run.write_metrics(row for row in run.metrics() if row["step"] <= position.step)
        if position.epoch < settings.epochs:
            for outdated in (run.evaluation_path, run.samples_path):
                outdated.unlink(missing_ok=True)
        write_text(run.config_path, yaml.safe_dump(settings.kept(), sort_keys=False, allow_unicode=True))
    return position


def save_model(model: Model, run: Run, *, epochs: int) -> None:
    """Write the model, each of its files as a whole, and its number of epochs; what was measured of another one goes.

    Raises:
        UsageError: it cannot be written.
    """
    told = json.dumps({"epochs": epochs})
    with writing(run):
        if not run.trained_path.exists() or run.trained_path.read_text("utf-8", errors="replace") != told:
            for outdated in (run.evaluation_path, run.samples_path, run.trained_path):
                outdated.unlink(missing_ok=True)
        with replacing_files(run.model_path) as folder:
            model.save_pretrained(folder)
        write_text(run.trained_path, told)


def _remove_halves(run: Run) -> None:
    """Remove what a killed process was about to put in its place."""
    for folder in (run.path, run.checkpoints, run.model_path):
        for half in folder.glob(f".*-{'[0-9a-f]' * 32}.*"):
            half.unlink()
    for half in run.path.glob(".model-*"):
        shutil.rmtree(half)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a checkpoint holds, on the CPU; nothing is unpickled.

    Raises:
        Exception: it is not what was written.
    """
    check_checksum(path)
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def without_checkpoint(run: Run) -> str:
    """Return what can be done where the last checkpoint is of no use."""
    last, earlier = last_checkpoint(run).name, sorted(file.name for file in run.checkpoints.glob("epoch-*.ckpt"))
    other = f"copy {earlier[-1]} over {last}, and its checksum over that of {last}, or " if earlier else ""
    return f"; {other}train anew with overwrite=True (--overwrite)."


def _position(run: Run) -> Position:
    if not last_checkpoint(run).exists():
        return Position(epoch=0, batch=0, step=0)

    def reader(path: Path) -> Position:
        state = read_checkpoint(path)
        loop = state["loops"]["fit_loop"]
        epochs, batches = (loop[of]["current"] for of in ("epoch_progress", "epoch_loop.batch_progress"))
        within = epochs["ready"] > epochs["processed"]
        position = Position(epochs["processed"], batches["processed"] if within else 0, state["global_step"])
        if not len(state["optimizer_states"]) == len(state["lr_schedulers"]) == 1:
            raise ValueError("expected one optimiser and one schedule")
        if not all(isinstance(number, int) and number >= 0 for number in position):
            raise ValueError(f"expected whole numbers of epochs, batches and steps, got {tuple(position)}")
        return position

    position: Position = read(last_checkpoint(run), reader, without_checkpoint(run))
    return position
