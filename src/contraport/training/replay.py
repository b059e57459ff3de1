"""The step that stopped a training, once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.data import Batch
from contraport.encoders import check_trusted
from contraport.errors import check
from contraport.options import accept_deprecated, is_object_placeholder
from contraport.runs import Run, read
from contraport.training.components import build, fitted, load_initial_weights
from contraport.training.restore import read_checkpoint
from contraport.training.step.training_module import TrainingModule


class FailedStep(NamedTuple):
    """A step of a training whose loss or gradient was not finite.

    Attributes:
        pipeline: the networks with the weights before the step; `pipeline.views`, `.model` and `.objective` are its
            parts. What a forward pass changes, such as running statistics, is as the step left it.
        batch: the raw items, of all processes.
        step: how many steps were done before.
        part: which of the batches of the step it is, where gradients are added up.
    """

    pipeline: TrainingModule
    batch: Batch
    step: int
    part: int

    def loss(self) -> Tensor:
        """Return the loss, with the random numbers of the step."""
        loss: Tensor = self.pipeline(self.batch, self.step, self.part)
        return loss


@accept_deprecated(trust_remote_code="trust")
def replay(path: str | Path, *, trust_remote_code: bool = False, **objects: Any) -> FailedStep:
    """Return the step that stopped the training in a run folder.

    Args:
        path: the run folder.
        trust_remote_code: import and run the encoder that the run names as ``module:attribute``.
        objects: the arguments of `contraport.train` that were objects, such as `data` or `objective`.

    Raises:
        UsageError: no step stopped it, or an object is missing, or the run names code to run.
    """
    run = Run(path)
    file = run.nonfinite_items
    check(file.exists(), f"run: {run.path} has no {file.name}: no step of it had a loss that is not finite.")
    settings = run.settings(**{"num_workers": 0, **objects})
    missing = [name for name, value in settings.kept().items() if is_object_placeholder(value) and name not in objects]
    check(not missing, f"{', '.join(missing)}: the run was given an object; pass it again.")
    check_trusted(settings.encoder, str(run.config_path), trust_remote_code=trust_remote_code or "encoder" in objects)
    step, part = read(run.nonfinite_path, _step)
    begun = load_initial_weights(settings, run)
    pipeline = build(fitted(settings, begun), begun, run=run).pipeline

    def restore(file: Path) -> None:
        pipeline.load_state_dict(read_checkpoint(file)["pipeline"])

    read(run.nonfinite_checkpoint, restore)
    return FailedStep(pipeline, read(file, _batch), step, part)


def _step(file: Path) -> tuple[int, int]:
    """Return how many steps were done before, and which part of the next one failed."""
    told = json.loads(file.read_text("utf-8"))
    return int(told["step"]) - 1, int(told["part"])


def _batch(file: Path) -> Batch:
    with np.load(file, allow_pickle=False) as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    views = sum(name.startswith("view") for name in tensors)
    return Batch(
        views=tuple(tensors[f"view{number}"] for number in range(views)),
        labels=tensors.get("labels"),
        domains=tensors.get("domains"),
        ids=tensors["ids"],
        present=tensors.get("present"),
        weights=tensors.get("weights"),
    )
