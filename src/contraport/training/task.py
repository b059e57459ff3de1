"""What one step of training does: views, embeddings, loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from contraport.data import Augment, Batch
from contraport.encoders import Model


class ContrastiveTask(LightningModule):
    """A model and the objective that trains it.

    All that is random in a step is a function of the seed and of the number of the step, so a run that stops after any
    epoch and goes on gives the same weights, bit for bit, as one that never stopped.
    """

    def __init__(
        self,
        model: Model,
        objective: nn.Module,
        augment: Augment,
        *,
        seed: int,
        make_optimizer: Callable[[nn.Module], Optimizer],
        make_schedule: Callable[[Optimizer], LRScheduler],
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.augment = augment
        self.seed = seed
        self._make_optimizer = make_optimizer
        self._make_schedule = make_schedule
        self._wanted = _keywords(objective)

    @property
    def temperature(self) -> float | None:
        """The objective's temperature, or None where it has none."""
        temperature = getattr(self.objective, "temperature", None)
        return None if temperature is None else float(torch.as_tensor(temperature).detach())

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        torch.manual_seed(_step_seed(self.seed, self.global_step))
        views = self.augment(batch.views)
        # One pass over both views: normalisation layers see them together, as they will see mixed data later.
        embeddings = self.model.project(self.model(torch.cat(views))).chunk(len(views))
        known = {"labels": batch.labels, "domains": batch.domains}
        loss: Tensor = self.objective(*embeddings, **{name: known[name] for name in self._wanted})
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimiser, and the schedule that sets its rate at each step."""
        optimizer = self._make_optimizer(self)
        schedule: Any = {"scheduler": self._make_schedule(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def _keywords(objective: nn.Module) -> tuple[str, ...]:
    parameters = inspect.signature(objective.forward).parameters
    return tuple(name for name in ("labels", "domains") if name in parameters)


def _step_seed(seed: int, step: int) -> int:
    return int(np.random.SeedSequence([seed, step]).generate_state(1, np.uint64)[0])
