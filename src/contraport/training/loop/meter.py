"""What a training measures of itself: a row every few steps, with its time and how long it waited for data."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from contraport.data import Batch
from contraport.data.loading import Loader, StreamLoader
from contraport.runs import MetricsRow, Run
from contraport.training.loop.loggers import log_row
from contraport.training.loop.module import ContrastiveModule
from contraport.wording import counted

log = logging.getLogger("contraport.training")


class TimedLoader:
    """A loader that measures how long its reader stands waiting for batches.

    Attributes:
        waited: seconds, in all.
    """

    def __init__(self, loader: Loader | StreamLoader) -> None:
        self.loader = loader
        self.waited = 0.0

    @property
    def sampler(self) -> Iterable[list[int]] | None:
        """The order of the batches, which Lightning tells the epoch."""
        return self.loader.batch_sampler

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        start = time.perf_counter()
        for batch in self.loader:
            self.waited += time.perf_counter() - start
            yield batch
            start = time.perf_counter()


class Meter(Callback):
    """Writes a row to `metrics.jsonl` every few steps and at the end of each epoch: means since the last row.

    Attributes:
        row: the last row, empty before the first.
        started: whether the training goes: what a checkpoint holds was taken.
        steps: steps of this session.
        seconds: seconds of this session.
        noted: what others measured last, by name.
        items: items that went through the encoder in this session, each with all its views, in all processes.
    """

    def __init__(self, run: Run, loader: TimedLoader, *, batch_size: int, every: int) -> None:
        self.row: MetricsRow = {}
        self.started = False
        self.steps = 0
        self.seconds = 0.0
        self.items = 0
        self._run = run
        self._loader = loader
        self._batch_size = batch_size
        self._every = every
        self._earlier = 0.0
        self._losses: list[float] = []
        self._steps_of_row = 0
        self.noted: MetricsRow = {}
        self._new: MetricsRow = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the seconds of all sessions so far, and what the next row has already."""
        return {
            "seconds": self._earlier + self.seconds,
            "losses": list(self._losses),
            "steps_of_row": self._steps_of_row,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting where an earlier session was saved."""
        self._earlier = state_dict["seconds"]
        self._losses = list(state_dict["losses"])
        self._steps_of_row = state_dict["steps_of_row"]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self.started = True
        self._start = time.perf_counter()
        self._last = (0, 0.0, self._loader.waited)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        """Count the step; note the learning rate, the temperature and the plan's mass that it used."""
        assert isinstance(pl_module, ContrastiveModule)
        self.steps += 1
        self._steps_of_row += 1
        self._used = {
            "lr": optimizer.param_groups[0]["lr"],
            "temperature": pl_module.temperature,
            "plan_mass": pl_module.plan_mass,
        }

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note the loss; write a row when it is time."""
        self._losses.append(float(outputs["loss"]))
        self.items += self._batch_size
        self.seconds = time.perf_counter() - self._start
        if self._steps_of_row == self._every or trainer.is_last_batch:
            self._write_row(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Tell the log how the epoch ended."""
        log.debug("epoch %d of %s: %s", trainer.current_epoch + 1, trainer.max_epochs, self.row)

    def note(self, values: MetricsRow, *, seconds: float) -> None:
        """Put what others measured into the next row; the seconds that it took count as none of the training's."""
        self._new |= values
        self.noted |= values
        self._start += seconds

    def summary(self) -> str:
        """Return the session in one line."""
        bound = self.row["mi_bound"]
        knows = bound is not None and bound > 0  # else it says nothing, as two views share none at the least
        told = f"{self.row['loss']:.4f}" + (f"; the views share at least {bound:.2f} nats" if knows else "")
        return (
            f"{counted(self.steps, 'step')} in {self.seconds:.1f} s: {self.items / self.seconds:,.0f} items/s, "
            f"{self._loader.waited / self.seconds:.1%} of the time waiting for data; last loss {told}"
        )

    def _write_row(self, trainer: Trainer) -> None:
        items, seconds, waited = self._last
        self._last = (self.items, self.seconds, self._loader.waited)
        elapsed = self.seconds - seconds
        module, loss = trainer.lightning_module, math.fsum(self._losses) / len(self._losses)
        assert isinstance(module, ContrastiveModule)
        self.row = {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch + 1,
            "seconds": round(self._earlier + self.seconds, 3),
            "loss": loss,
            **self._used,
            "mi_bound": module.information(loss),
            "images_per_second": round((self.items - items) / elapsed, 1),
            "data_wait": round((self._loader.waited - waited) / elapsed, 4),
            **self._new,
        }
        self._new.clear()
        self._losses.clear()
        self._steps_of_row = 0
        if trainer.is_global_zero:
            with self._run.writing():
                self._run.append_metrics(self.row)
            log_row(trainer.loggers, self._run, self.row)
