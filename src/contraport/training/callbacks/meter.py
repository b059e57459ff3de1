"""Meter: a row of metrics every few steps, with its time and how long the loop waited for data."""

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
    """Writes a row to `metrics.jsonl` every few steps and at the end of each epoch: means since the last row.

    Args:
        run: the folder.
        objective: gives temperature, plan mass and the bound of mutual information, where it has them.
        batch_size: items in a batch, of all processes together.
        every: steps between two rows.
        loggers: to which the rows go too.

    Attributes:
        row: the last row, empty before the first.
        steps: steps of this session.
        seconds: seconds of this session.
        noted: what others measured last, by name.
        items: items that went through the encoder in this session, each with all its views, in all processes.
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
        self.noted: MetricsRow = {}
        self._new: MetricsRow = {}
        self._run = run
        self._objective = objective
        self._batch_size = batch_size
        self._every = every
        self._loggers = loggers
        self._earlier = 0.0
        self._losses: list[float | Tensor] = []
        self._steps_of_row = 0

    def state(self) -> dict[str, Any]:
        """Return the seconds of all sessions so far, and the part of the next row that is there."""
        return {
            "seconds": self._earlier + self.seconds,
            "losses": _floats(self._losses),
            "steps_of_row": self._steps_of_row,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue the count of an earlier session."""
        self._earlier = state["seconds"]
        self._losses = list(state["losses"])
        self._steps_of_row = state["steps_of_row"]

    def on_start(self, loop: Loop) -> None:
        """Start the clock."""
        self._start = time.perf_counter()
        self._last = (0, 0.0, loop.waited)

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Note the loss; it is read with the row, as reading from a GPU waits for all its work."""
        self._losses.append(loss)

    def before_step(self, loop: Loop) -> None:
        """Count the step; note the learning rate, the temperature and the plan's mass that it uses."""
        self.steps += 1
        self._steps_of_row += 1
        if self._steps_of_row == self._every or loop.is_last_batch:
            self._used = {
                "lr": loop.optimizer.param_groups[0]["lr"],
                "temperature": _temperature(self._objective),
                "plan_mass": getattr(self._objective, "mass", None),
            }

    def after_batch(self, loop: Loop) -> None:
        """Write a row when it is time."""
        self.items += self._batch_size
        self.seconds = time.perf_counter() - self._start
        if self._steps_of_row == self._every or loop.is_last_batch:
            self._write_row(loop)

    def after_epoch(self, loop: Loop) -> None:
        """Log how the epoch ended."""
        log.debug("epoch %d of %s: %s", loop.epoch, loop.epochs, self.row)

    def note(self, values: MetricsRow, *, seconds: float) -> None:
        """Put what others measured into the next row; the seconds that it took count as none of the training's."""
        self._new |= values
        self.noted |= values
        self._start += seconds

    def summary(self) -> str:
        """Return the session in one line."""
        bound = self.row["mi_bound"]
        is_informative = bound is not None and bound > 0  # two views share none at the least
        shared = f"; the views share at least {bound:.2f} nats" if is_informative else ""
        return (
            f"{pluralize(self.steps, 'step')} in {self.seconds:.1f} s: {self.items / self.seconds:,.0f} items/s, "
            f"{self.waited / self.seconds:.1%} of the time waiting for data; last loss {self.row['loss']:.4f}{shared}"
        )

    def _write_row(self, loop: Loop) -> None:
        losses = _floats(self._losses)
        self.seconds = time.perf_counter() - self._start  # the losses are read: a GPU has done its work
        self.waited = loop.waited
        items, seconds, waited = self._last
        self._last = (self.items, self.seconds, self.waited)
        elapsed, loss = self.seconds - seconds, math.fsum(losses) / len(losses)
        self.row = {
            "step": loop.step,
            "epoch": loop.epoch + 1,
            "seconds": round(self._earlier + self.seconds, 3),
            "loss": loss,
            **self._used,
            "mi_bound": self._objective.information(loss) if isinstance(self._objective, Loss) else None,
            "images_per_second": round((self.items - items) / elapsed, 1),
            "data_wait": round((self.waited - waited) / elapsed, 4),
            **self._new,
        }
        self._new.clear()
        self._losses.clear()
        self._steps_of_row = 0
        if is_main_process():
            with self._run.writing():
                self._run.append_metrics(self.row)
            send_row(self._loggers, self._run, self.row)


def _temperature(objective: nn.Module | None) -> float | None:
    """Return the objective's temperature, or None where it has none."""
    temperature = getattr(objective, "temperature", None)
    if temperature is None:
        return None
    return float(temperature.detach() if isinstance(temperature, Tensor) else temperature)


def _floats(values: Sequence[float | Tensor]) -> list[float]:
    """Return numbers of which some are tensors; those are read at once."""
    if not any(isinstance(value, Tensor) for value in values):
        return list(map(float, values))
    read = iter(torch.stack([value for value in values if isinstance(value, Tensor)]).tolist())
    return [float(next(read)) if isinstance(value, Tensor) else value for value in values]
