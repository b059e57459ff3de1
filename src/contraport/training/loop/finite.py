"""A loss or a gradient that is not a number: the training stops before the step, and keeps what replays it."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from contraport import distributed
from contraport.data import Batch
from contraport.distributed import raise_once
from contraport.errors import explained
from contraport.files import checksum_of, write_arrays, write_json
from contraport.runs import Run
from contraport.training.loop.checkpoints import CheckpointFile


class FiniteGuard(Callback):
    """Stops the run before a step whose loss or gradient is not finite, and keeps what replays it.

    `nonfinite.json` tells step, seed and loss; `checkpoints/nonfinite.ckpt` holds the weights before the step and
    `checkpoints/nonfinite.npz` the raw items, of all processes.
    """

    def __init__(self, run: Run, file: CheckpointFile, *, seed: int) -> None:
        self._run = run
        self._file = file
        self._seed = seed
        self._parts: list[tuple[Batch, Tensor]] = []

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget an earlier failure."""
        if trainer.is_global_zero:
            kept = self._run.nonfinite_checkpoint
            for file in (self._run.nonfinite_path, kept, checksum_of(kept), self._run.nonfinite_items):
                file.unlink(missing_ok=True)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Batch, batch_idx: int) -> None:
        """Note what the step sees."""
        self._batch = batch

    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Note the loss of what it saw; a step has several where gradients are added up."""
        self._parts.append((self._batch, loss.detach()))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Let the step pass if its loss and its gradient are finite.

        Raises:
            FloatingPointError: they are not; the weights are those before the step.
        """
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        numbers = torch.stack([*(loss.float() for _, loss in self._parts), get_total_norm(gradients).float()])
        *losses, norm = numbers.tolist()
        parts, self._parts = self._parts, []
        if all(map(math.isfinite, (*losses, norm))):
            return
        part = next((part for part, loss in enumerate(losses) if not math.isfinite(loss)), len(losses) - 1)
        step, epoch = trainer.global_step + 1, trainer.current_epoch + 1
        batch = _gathered(parts[part][0])
        self._file.write(trainer, self._run.nonfinite_checkpoint)
        if trainer.is_global_zero:
            with self._run.writing():
                write_arrays(self._run.nonfinite_items, {name: value.cpu().numpy() for name, value in batch.items()})
                write_json(
                    self._run.nonfinite_path,
                    {
                        "step": step,
                        "part": part,
                        "epoch": epoch,
                        "seed": self._seed,
                        "loss": str(losses[part]),
                        "gradient_norm": str(norm),
                        "ids": batch["ids"].tolist(),
                    },
                )
        message = (
            f"the loss is {losses[part]:g} and its gradient's norm {norm:g} at step {step} (epoch {epoch}, seed "
            f"{self._seed}); {self._run.nonfinite_path} tells of it, and contraport.training.replay computes it again. "
            "A lower lr or a higher temperature may help."
        )
        with explained("contraport docs troubleshooting the-loss-is-not-finite"):
            raise_once(FloatingPointError(message), status=1)


def _gathered(batch: Batch) -> dict[str, Tensor]:
    named: dict[str, Tensor | None] = {f"view{number}": view for number, view in enumerate(batch.views)}
    named |= {"labels": batch.labels, "domains": batch.domains, "ids": batch.ids}
    named |= {"present": batch.present, "weights": batch.weights}
    return {name: distributed.gather(value) for name, value in named.items() if value is not None}
