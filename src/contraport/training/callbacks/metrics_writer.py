"""Callback that writes loss, learning rate and throughput to `metrics.jsonl`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from contraport._utils.formatting import pluralize
from contraport.data import Batch
from contraport.distributed import is_main_process, stop_all_on_error
from contraport.objectives import Loss
from contraport.runs import MetricsRow, WritableRun
from contraport.training.callbacks.loggers import Logger, send_row_unless_logged
from contraport.training.loop import Callback, Loop

log = logging.getLogger("contraport.training")


class MetricsWriter(Callback):
    """Callback that writes rows of mean values to `metrics.jsonl`.

    A row is written every few steps and at the end of each epoch.

    Args:
        objective: source of temperature, plan mass and mutual information bound, if it has them.
        batch_size: number of items per batch, over all processes.
        compute_epoch_end_values: called with an epoch, from 1, and a device before the last row of the epoch is
            written; returns more values of this row. Its seconds do not count as training time.

    Attributes:
        last_row: last row written to `metrics.jsonl`; empty before the first.
        session_steps: number of optimizer steps of this session (since the start or the last resume).
        session_seconds: duration of this session in seconds.
        last_online_values: last value of each online metric, by name.
        session_items: number of items processed in this session, over all processes.
        data_wait_seconds: seconds of this session in which the loop waited for data.
    """

    checkpoint_key: ClassVar[str] = "Meter"  # the class had this name

    def __init__(
        self,
        run: WritableRun,
        objective: nn.Module | None,
        *,
        batch_size: int,
        steps_per_row: int,
        loggers: Sequence[Logger] = (),
        compute_epoch_end_values: Callable[[int, torch.device], MetricsRow] | None = None,
    ) -> None:
        self.last_row: MetricsRow = {}
        self.session_steps = 0
        self.session_seconds = 0.0
        self.session_items = 0
        self.data_wait_seconds = 0.0
        self.last_online_values: MetricsRow = {}
        self._compute_epoch_end_values = compute_epoch_end_values
        self._run = run
        self._objective = objective
        self._batch_size = batch_size
        self._steps_per_row = steps_per_row
        self._loggers = loggers
        self._earlier_seconds = 0.0
        self._losses: list[float | Tensor] = []
        self._steps_of_row = 0

    def state(self) -> dict[str, Any]:
        return {
            "seconds": self._earlier_seconds + self.session_seconds,
            "losses": to_floats(self._losses),
            "steps_of_row": self._steps_of_row,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._earlier_seconds = state["seconds"]
        self._losses = list(state["losses"])
        self._steps_of_row = state["steps_of_row"]

    def on_start(self, loop: Loop) -> None:
        """Start the clock of the session."""
        self._start = time.perf_counter()
        self._totals_at_last_row = (0, 0.0, loop.data_wait_seconds)

    def after_backward(self, loop: Loop, batch: Batch, loss: Tensor) -> None:
        """Keep the loss without reading it: reading from a GPU waits for all queued work."""
        self._losses.append(loss)

    def before_optimizer_step(self, loop: Loop) -> None:
        """Record learning rate, temperature and plan mass before a logged step."""
        # The step changes learning rate, temperature and plan mass.
        self.session_steps += 1
        self._steps_of_row += 1
        if self._steps_of_row == self._steps_per_row or loop.is_last_batch:
            temperature = getattr(self._objective, "temperature", None)
            if isinstance(temperature, Tensor):
                temperature = temperature.detach()
            self._step_values = {
                "lr": loop.optimizer.param_groups[0]["lr"],
                "temperature": None if temperature is None else float(temperature),
                "plan_mass": getattr(self._objective, "last_plan_mass", None),
            }

    def after_batch(self, loop: Loop) -> None:
        online_values: MetricsRow = {}
        if loop.is_last_batch and self._compute_epoch_end_values is not None:
            start = time.perf_counter()
            online_values = self._compute_epoch_end_values(loop.completed_epochs + 1, loop.device)
            self._start += time.perf_counter() - start
            self.last_online_values |= online_values
        self.session_items += self._batch_size
        self.session_seconds = time.perf_counter() - self._start
        if self._steps_of_row != self._steps_per_row and not loop.is_last_batch:
            return
        # A row has the means since the last row.
        losses = to_floats(self._losses)
        # After reading the losses, for which a GPU finishes its work: before, only the launch of kernels is timed.
        self.session_seconds = time.perf_counter() - self._start
        self.data_wait_seconds = loop.data_wait_seconds
        items, seconds, waited = self._totals_at_last_row
        self._totals_at_last_row = (self.session_items, self.session_seconds, self.data_wait_seconds)
        elapsed, loss = self.session_seconds - seconds, math.fsum(losses) / len(losses)
        self.last_row = {
            "step": loop.step,
            "epoch": loop.completed_epochs + 1,
            "seconds": round(self._earlier_seconds + self.session_seconds, 3),
            "loss": loss,
            **self._step_values,
            "mi_bound": self._objective.mutual_information_bound(loss) if isinstance(self._objective, Loss) else None,
            "images_per_second": round((self.session_items - items) / elapsed, 1),
            "data_wait": round((self.data_wait_seconds - waited) / elapsed, 4),
            **online_values,
        }
        self._losses.clear()
        self._steps_of_row = 0
        with stop_all_on_error():
            if is_main_process():
                with self._run.translate_write_errors():
                    self._run.append_metrics(self.last_row)
                send_row_unless_logged(self._loggers, self._run, self.last_row)
        if loop.is_last_batch:
            log.debug("epoch %d of %s: %s", loop.completed_epochs + 1, loop.epochs, self.last_row)

    def format_session_summary(self) -> str:
        """Return one line with the session's steps, time, throughput and last loss."""
        bound, seconds = self.last_row["mi_bound"], self.session_seconds
        is_informative = bound is not None and bound > 0  # mutual information is nonnegative
        shared = f", so the mutual information of training views is >= {bound:.2f} nats" if is_informative else ""
        return (
            f"{pluralize(self.session_steps, 'step')} in {seconds:.1f} s: {self.session_items / seconds:,.0f} items/s, "
            f"{self.data_wait_seconds / seconds:.1%} waiting for data; last loss {self.last_row['loss']:.4f}{shared}"
        )


def to_floats(values: Sequence[float | Tensor]) -> list[float]:
    """Convert numbers and tensors to floats with a single transfer from the device."""
    if not any(isinstance(value, Tensor) for value in values):
        return list(map(float, values))
    read = iter(torch.stack([value for value in values if isinstance(value, Tensor)]).tolist())
    return [float(next(read)) if isinstance(value, Tensor) else value for value in values]
