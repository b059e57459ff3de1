"""What is measured of the encoder while it is trained; nothing of the training knows of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from contraport.measures.monitoring import Watch
from contraport.training.loop.meter import Meter

if TYPE_CHECKING:
    from contraport.measures.subject import Subject


class Monitor(Callback):
    """Measures at the end of some epochs, in the first process, and lets the meter note it in the epoch's last row.

    It stands before the meter, so that the row is not yet written. No weight, no buffer and no random state changes.

    Args:
        watches: what is measured, and how often.
        subject: returns what is measured, on a device.
        meter: writes the rows.
    """

    def __init__(self, watches: Sequence[Watch], subject: Callable[[torch.device], Subject], meter: Meter) -> None:
        self._watches, self._subject, self._meter = watches, subject, meter

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Measure what is due."""
        due = [watch.measure for watch in self._watches if (trainer.current_epoch + 1) % watch.every == 0]
        if not (trainer.is_last_batch and trainer.is_global_zero and due):
            return
        start = time.perf_counter()
        subject = self._subject(pl_module.device)
        values = {measure.key: measure.value(subject) for measure in due}
        self._meter.note(values, seconds=time.perf_counter() - start)
