"""Loads the step at which training failed with a non-finite loss or gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contraport._utils.files import read_npz_arrays
from contraport.data import Batch
from contraport.encoders import check_saved_encoder_trusted
from contraport.errors import check
from contraport.options import (
    accept_deprecated_keywords,
    has_object_placeholder,
    keep_deprecated_attributes,
    keep_deprecated_module_names,
)
from contraport.runs import WritableRun, read_run_file
from contraport.training.callbacks.checkpoints import read_checkpoint
from contraport.training.components.assembly import build_components
from contraport.training.components.model_builder import load_initial_weights, with_defaults_from_weights
from contraport.training.step.training_module import TrainingModule

__getattr__ = keep_deprecated_module_names("contraport.training", replay="load_failed_step")


@keep_deprecated_attributes(part="micro_batch")
class FailedStep(NamedTuple):
    """Training step that failed because its loss or gradient was not finite.

    Attributes:
        module: training module with the weights before the step; its submodules are `.views`, `.model`, `.objective`.
            Buffers that a forward pass changes, such as running statistics, are as the step left them.
        batch: raw items of the batch, of all processes.
        step: number of optimizer steps done before the failed one.
        micro_batch: number of the failed micro-batch within the step, with gradient accumulation; else 0.
    """

    module: TrainingModule
    batch: Batch
    step: int
    micro_batch: int

    def loss(self) -> Tensor:
        """Recompute the loss of the failed step, with the same random numbers."""
        loss: Tensor = self.module(self.batch, self.step, self.micro_batch)
        return loss


@accept_deprecated_keywords(trust="trust_remote_code")
def load_failed_step(path: str | Path, *, trust_remote_code: bool = False, **objects: Any) -> FailedStep:
    """Load the training step whose loss or gradient was not finite.

    Args:
        path: the run folder.
        trust_remote_code: import and run an encoder named as ``module:attribute``. Only for code you trust.
        objects: arguments of `contraport.train` that were objects, such as `data` or `objective`.

    Raises:
        UsageError: the run has no such step, an object is missing, or code without `trust_remote_code`.
    """
    run = WritableRun(path)
    file = run.nonfinite_items
    check(file.exists(), f"run: {run.path} has no {file.name}: the loss was finite at all steps.", "missing_file")
    settings = run.settings(**{"num_workers": 0, **objects})
    missing = [
        name for name, value in settings.to_config().items() if has_object_placeholder(value) and name not in objects
    ]
    check(not missing, f"{', '.join(missing)}: the run was given an object; pass it again.", "object_required")
    check_saved_encoder_trusted(
        settings.encoder, str(run.config_path), trust_remote_code=trust_remote_code or "encoder" in objects
    )
    step, micro_batch = read_run_file(run.nonfinite_path, _read_step_and_micro_batch)
    weights = load_initial_weights(settings, run)
    module = build_components(with_defaults_from_weights(settings, weights), weights, run=run).module

    def restore(file: Path) -> None:
        module.load_state_dict(read_checkpoint(file)["pipeline"])

    read_run_file(run.nonfinite_checkpoint, restore)
    return FailedStep(module, read_run_file(file, _read_failed_batch), step, micro_batch)


def _read_step_and_micro_batch(file: Path) -> tuple[int, int]:
    """Read the numbers of the failed step and micro-batch, both counted from 0."""
    record = json.loads(file.read_text("utf-8"))
    return int(record["step"]) - 1, int(record["part"])


def _read_failed_batch(file: Path) -> Batch:
    """Read the batch of the failed step from its .npz file."""
    tensors = {name: torch.from_numpy(array) for name, array in read_npz_arrays(file).items()}
    views = sum(name.startswith("view") for name in tensors)
    return Batch(
        views=tuple(tensors[f"view{number}"] for number in range(views)),
        labels=tensors.get("labels"),
        domains=tensors.get("domains"),
        ids=tensors["ids"],
        present=tensors.get("present"),
        weights=tensors.get("weights"),
    )
