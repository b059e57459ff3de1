"""Online metrics callback: computes metrics of the encoder after some epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from contraport.distributed import is_main_process
from contraport.metrics.registry import ScheduledMetric
from contraport.training.callbacks.meter import Meter
from contraport.training.loop import Callback, Loop

if TYPE_CHECKING:
    from contraport.metrics.eval_context import EvalContext


class OnlineMetrics(Callback):
    """Callback that computes metrics after some epochs, in the first process, for the last row of the epoch.

    It precedes the meter in the list of callbacks, so that the row is not yet written. Weights, buffers and random
    state do not change.

    Args:
        watches: metrics with their intervals in epochs.
        subject: creates the evaluation data on a device.
        meter: writes the rows.
    """

    def __init__(
        self, watches: Sequence[ScheduledMetric], subject: Callable[[torch.device], EvalContext], meter: Meter
    ) -> None:
        self._watches, self._subject, self._meter = watches, subject, meter

    def after_batch(self, loop: Loop) -> None:
        due = [watch.metric for watch in self._watches if (loop.completed_epochs + 1) % watch.every == 0]
        if not (loop.is_last_batch and is_main_process() and due):
            return
        start = time.perf_counter()
        subject = self._subject(loop.device)
        values = {measure.key: measure.compute_value(subject) for measure in due}
        self._meter.add_online_values(values, seconds=time.perf_counter() - start)
