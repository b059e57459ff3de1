"""What Lightning is told of a training: the loss of a batch, and what follows a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from contraport.data import Batch, own_share
from contraport.encoders import Model
from contraport.training.step.pipeline import Pipeline


class ContrastiveTask(LightningModule):
    """A pipeline, its optimiser and its schedule.

    All that is random in a step is a function of the seed and of the number of the step, so a run that stops after any
    step and goes on gives the same weights, bit for bit, as one that never stopped.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        batch_size: int,
        make_optimizer: Callable[[nn.Module], Optimizer],
        make_schedule: Callable[[Optimizer], LRScheduler],
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self._batch_size = batch_size
        self._make_optimizer = make_optimizer
        self._make_schedule = make_schedule
        self._part = 0

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self.pipeline.model

    @property
    def seed(self) -> int:
        """What all that is random depends on."""
        return self.pipeline.seed

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

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of one batch."""
        loss: Tensor = self.pipeline(batch, self.global_step, self._part, own_share(self._batch_size))
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
        optimizer = self._make_optimizer(self)
        schedule: Any = {"scheduler": self._make_schedule(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}
