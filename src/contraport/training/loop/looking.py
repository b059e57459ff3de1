"""A training looks at its pairs between epochs."""

from __future__ import annotations

import logging
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from contraport.distributed import is_first, together
from contraport.runs import Run
from contraport.training.step.auditor import REMEMBERED, Auditor, remembering

log = logging.getLogger("contraport.training")


class Looking(Callback):
    """Looks at the pairs between epochs, before the checkpoint is written that holds what was found.

    Args:
        auditor: judges the pairs.
        run: the folder, which keeps the scores.
    """

    def __init__(self, auditor: Auditor, run: Run) -> None:
        self._auditor = auditor
        self._run = run

    def state_dict(self) -> dict[str, Any]:
        """Return what the last look found."""
        return self._auditor.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Draw as was drawn when the checkpoint was written."""
        self._auditor.take_up(state_dict)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look, if it is time."""
        epoch = trainer.current_epoch + 1
        with together():
            looked = self._auditor.after_epoch(epoch)
        if not looked:
            return
        look = self._auditor.last
        assert look is not None
        with together():
            if is_first():
                with self._run.writing():
                    self._run.save_pairs(self._auditor.found())
        told = log.info if epoch == trainer.max_epochs else log.debug
        told(
            "after epoch %d: %.1f%% of the pairs seem wrong (%.1f%% to %.1f%%), %d of %d are trained on",
            epoch, 100 * look.rate, 100 * look.low, 100 * look.high, len(look.drawn), len(look.scores),
        )  # fmt: skip
        if epoch == trainer.max_epochs and look.remembered > REMEMBERED:
            log.warning(remembering(look.remembered))
