"""The run folder at the two ends of a training: opened, or taken back to its last whole epoch; given its model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.runs import Run, write_text


class Position(NamedTuple):
    """How far a training is: whole epochs and steps that are done."""

    epoch: int
    step: int


def last_checkpoint(run: Run) -> Path:
    """Return the path of the checkpoint that resuming takes."""
    return run.checkpoints / "last.ckpt"


def open_run(run: Run, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> Position:
    """Make the run's folder; or, to resume, take it back to the end of its last whole epoch.

    Raises:
        UsageError: the folder is in the way, or the checkpoint is corrupt; nothing was changed.
    """
    if not resume:
        Run.create(run.path, config, overwrite=overwrite)
        return Position(epoch=0, step=0)
    position = _position(last_checkpoint(run))
    if run.metrics_path.exists():
        run.write_metrics(row for row in run.metrics() if row["step"] <= position.step)
    if position.epoch < config["epochs"]:
        for outdated in (run.evaluation_path, run.samples_path):
            outdated.unlink(missing_ok=True)
    write_text(run.config_path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))
    return position


def save_model(model: Model, run: Run) -> None:
    """Write the model; each of its files is replaced as a whole."""
    with tempfile.TemporaryDirectory(dir=run.path, prefix=".model-") as folder:
        model.save_pretrained(folder)
        run.model_path.mkdir(exist_ok=True)
        for file in Path(folder).iterdir():
            os.replace(file, run.model_path / file.name)


def _position(checkpoint: Path) -> Position:
    if not checkpoint.exists():
        return Position(epoch=0, step=0)
    try:
        state = torch.load(checkpoint, map_location="cpu", weights_only=True)
        return Position(epoch=state["epoch"] + 1, step=state["global_step"])
    except Exception as error:  # a corrupt file fails in as many ways as there are readers
        raise UsageError(f"resume: {checkpoint} is corrupt: {str(error).splitlines()[0]}") from error
