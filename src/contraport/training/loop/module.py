"""What Lightning is told of a training: the loss of a batch, and what follows a step."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from contraport.data import Batch, own_share
from contraport.objectives import Loss
from contraport.training.loop.optimization import make_schedule, optimizer_of
from contraport.training.step.pipeline import Pipeline
from contraport.verbs.train import Settings


class ContrastiveModule(LightningModule):
    """A pipeline, its optimiser and its schedule.

    All that is random in a step is a function of the seed and of the number of the step, so a run that stops after any
    step and goes on gives the same weights, bit for bit, as one that never stopped.

    Args:
        pipeline: makes the loss of a batch.
        settings: of the training.
        steps: of the whole training.
        warmup: steps in which the learning rate rises.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings, *, steps: int, warmup: int) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._settings = settings
        self._steps = steps
        self._warmup = warmup
        self._part = 0

    @property
    def temperature(self) -> float | None:
        """The objective's temperature, or None where it has none."""
        temperature = getattr(self.pipeline.objective, "temperature", None)
        if temperature is None:
            return None
        return float(temperature.detach() if isinstance(temperature, Tensor) else temperature)

    @property
    def plan_mass(self) -> float | None:
        """The total mass of the last plan, or None where the objective does not know it."""
        mass: float | None = getattr(self.pipeline.objective, "mass", None)
        return mass

    def information(self, loss: float) -> float | None:
        """Return the lower bound of mutual information that a loss gives, or None where the objective gives none."""
        objective = self.pipeline.objective
        return objective.information(loss) if isinstance(objective, Loss) else None

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        loss: Tensor = self.pipeline(batch, self.global_step, self._part, own_share(self._settings.batch_size))
        self._part += 1
        return loss

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Take the optimiser's step and what follows it, before any hook that may save a checkpoint."""
        step = self.global_step
        super().optimizer_step(*args, **kwargs)
        self.pipeline.after_step(step)
        self._part = 0

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return the optimiser, and the schedule that sets its rate at each step."""
        optimizer = optimizer_of(self._settings, self, self.pipeline.model.encoders)
        schedule: Any = make_schedule(optimizer, sched=self._settings.sched, steps=self._steps, warmup=self._warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
