"""Meter: writes a row of training metrics every few steps, with throughput and data loading time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from contraport._utils.formatting import pluralize
from contraport.data import Batch
from contraport.distributed import is_main_process
from contraport.objectives import Loss
from contraport.runs import MetricsRow, Run
from contraport.training.callbacks.loggers import Logger, send_row
from contraport.training.loop import Callback, Loop

log = logging.getLogger("contraport.training")


class Meter(Callback):
    """Writes a row to `metrics.jsonl` every few steps and after each epoch: means since the last row.

    Args:
        run: the run folder.
        objective: source of temperature, plan mass and mutual information bound, if it has them.
        batch_size: number of items per batch, over all processes.
        every: number of steps between two rows.
        loggers: receive the rows too.

    Attributes:
        row: the last row, empty before the first.
        steps: number of steps of this session.
        seconds: duration of this session.
        online_values: last values of the online metrics, by name.
        items: number of items processed in this session, over all processes.
        waited: seconds that the loop waited for data.
    """

    def __init__(
        self,
        run: Run,
        objective: nn.Module | None,
        *,
        batch_size: int,
        every: int,
        loggers: Sequence[Logger] = (),
    ) -> None:
        self.row: MetricsRow = {}
        self.steps = 0
        self.seconds = 0.0
        self.items = 0
        self.waited = 0.0
        self.online_values: MetricsRow = {}
        self._online_values: MetricsRow = {}
        self._run = run
        self._objective = objective
        self._batch_size = batch_size
        self._every = every
        self._loggers = loggers
        self._earlier_seconds = 0.0
        self._losses: list[float | Tensor] = []
        self._steps_of_row = 0

    def state(self) -> dict[str, Any]:
        """Return the seconds of all sessions so far, and the losses since the last row."""
        return {
            "seconds": self._earlier_seconds + self.seconds,
            "losses": _to_floats(self._losses),
            "steps_of_row": self._steps_of_row,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._earlier_seconds = state["seconds"]
        self._losses = list(state["losses"])
        self._steps_of_row = state["steps_of_row"]

    def on_start(self, loop: Loop) -> None:
        self._start = time.perf_counter()
        self._totals_at_last_row = (0, 0.0, loop.data_wait)

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Record the loss. It is read with the row: reading from a GPU waits for all queued work."""
        self._losses.append(loss)

    def before_step(self, loop: Loop) -> None:
        """Count the step; record the learning rate, temperature and plan mass before they change."""
        self.steps += 1
        self._steps_of_row += 1
        if self._steps_of_row == self._every or loop.is_last_batch:
            self._step_values = {
                "lr": loop.optimizer.param_groups[0]["lr"],
                "temperature": _temperature(self._objective),
                "plan_mass": getattr(self._objective, "mass", None),
            }

    def after_batch(self, loop: Loop) -> None:
        self.items += self._batch_size
        self.seconds = time.perf_counter() - self._start
        if self._steps_of_row == self._every or loop.is_last_batch:
            self._write_row(loop)

    def after_epoch(self, loop: Loop) -> None:
        log.debug("epoch %d of %s: %s", loop.epoch, loop.epochs, self.row)

    def add_online_values(self, values: MetricsRow, *, seconds: float) -> None:
        """Add values to the next row; the seconds that they took to compute do not count as training time."""
        self._online_values |= values
        self.online_values |= values
        self._start += seconds

    def summary(self) -> str:
        """Return a one-line summary of the session."""
        bound = self.row["mi_bound"]
        is_informative = bound is not None and bound > 0  # mutual information is nonnegative
        shared = f"; mutual information of the views >= {bound:.2f} nats" if is_informative else ""
        return (
            f"{pluralize(self.steps, 'step')} in {self.seconds:.1f} s: {self.items / self.seconds:,.0f} items/s, "
            f"{self.waited / self.seconds:.1%} waiting for data; last loss {self.row['loss']:.4f}{shared}"
        )

    def _write_row(self, loop: Loop) -> None:
        losses = _to_floats(self._losses)
        self.seconds = time.perf_counter() - self._start  # after reading the losses, for which a GPU finishes its work
        self.waited = loop.data_wait
        items, seconds, waited = self._totals_at_last_row
        self._totals_at_last_row = (self.items, self.seconds, self.waited)
        elapsed, loss = self.seconds - seconds, math.fsum(losses) / len(losses)
        self.row = {
            "step": loop.step,
            "epoch": loop.epoch + 1,
            "seconds": round(self._earlier_seconds + self.seconds, 3),
            "loss": loss,
            **self._step_values,
            "mi_bound": self._objective.mutual_information_bound(loss) if isinstance(self._objective, Loss) else None,
            "images_per_second": round((self.items - items) / elapsed, 1),
            "data_wait": round((self.waited - waited) / elapsed, 4),
            **self._online_values,
        }
        self._online_values.clear()
        self._losses.clear()
        self._steps_of_row = 0
        if is_main_process():
            with self._run.writing():
                self._run.append_metrics(self.row)
            send_row(self._loggers, self._run, self.row)


def _temperature(objective: nn.Module | None) -> float | None:
    """Return the temperature of the objective, or None if it has none."""
    temperature = getattr(objective, "temperature", None)
    if temperature is None:
        return None
    return float(temperature.detach() if isinstance(temperature, Tensor) else temperature)


def _to_floats(values: Sequence[float | Tensor]) -> list[float]:
    """Return numbers as floats; all tensors among them are read in one transfer."""
    if not any(isinstance(value, Tensor) for value in values):
        return list(map(float, values))
    read = iter(torch.stack([value for value in values if isinstance(value, Tensor)]).tolist())
    return [float(next(read)) if isinstance(value, Tensor) else value for value in values]
