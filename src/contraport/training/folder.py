"""The run folder at the two ends of a training: opened, or taken back to its checkpoint; given its model."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from safetensors import SafetensorError

from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.runs import Run, replacing_files, write_text

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


def open_run(run: Run, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Position:
    """Make the run's folder; or, to resume, take it back to its last checkpoint.

    Raises:
        UsageError: the folder is in the way or cannot be written to, or the checkpoint is corrupt; nothing was changed.
    """
    if not resume:
        with writing(run):
            Run.create(run.path, config, overwrite=overwrite)
        return Position(epoch=0, batch=0, step=0)
    position = _position(last_checkpoint(run))
    with writing(run):
        _remove_halves(run)
        if run.metrics_path.exists():
            run.write_metrics(row for row in run.metrics() if row["step"] <= position.step)
        if position.epoch < config["epochs"]:
            for outdated in (run.evaluation_path, run.samples_path):
                outdated.unlink(missing_ok=True)
        write_text(run.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
    return position


def save_model(model: Model, run: Run) -> None:
    """Write the model; each of its files is replaced as a whole.

    Raises:
        UsageError: it cannot be written.
    """
    with writing(run), replacing_files(run.model_path) as folder:
        model.save_pretrained(folder)


def _remove_halves(run: Run) -> None:
    """Remove what a killed process was about to put in its place."""
    for folder in (run.path, run.checkpoints):
        for half in folder.glob(f".*-{'[0-9a-f]' * 32}.*"):
            half.unlink()
    for half in run.path.glob(".model-*"):
        shutil.rmtree(half)


def _position(checkpoint: Path) -> Position:
    if not checkpoint.exists():
        return Position(epoch=0, batch=0, step=0)
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        loop = state["loops"]["fit_loop"]
        epochs, batches = (loop[of]["current"] for of in ("epoch_progress", "epoch_loop.batch_progress"))
        within = epochs["ready"] > epochs["processed"]
        return Position(epochs["processed"], batches["processed"] if within else 0, state["global_step"])
    except Exception as error:  # a corrupt file fails in as many ways as there are readers
        raise UsageError(f"resume: {checkpoint} is corrupt: {str(error).splitlines()[0]}") from error
