"""Audit of the pairs between epochs."""

from __future__ import annotations

import logging
from typing import Any

from contraport.auditing.pairs.pair_filter import MEMORIZATION_THRESHOLD, PairFilter, memorization_warning
from contraport.distributed import is_main_process, together
from contraport.runs import Run
from contraport.training.loop import Callback, Loop

log = logging.getLogger("contraport.training")


class AuditCallback(Callback):
    """Scores the pairs between epochs, before the checkpoint is written that holds the scores.

    Args:
        auditor: scores the pairs and chooses those that are trained on.
        run: the folder that keeps the scores; default: none.
    """

    def __init__(self, auditor: PairFilter, run: Run | None = None) -> None:
        self._auditor = auditor
        self._run = run

    def state(self) -> dict[str, Any]:
        """Return the last scores."""
        return self._auditor.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Draw the pairs that were drawn when the checkpoint was written."""
        self._auditor.take_up(state)

    def after_epoch(self, loop: Loop) -> None:
        """Score the pairs, if it is time."""
        with together():
            looked = self._auditor.after_epoch(loop.epoch)
        if looked and self._run is not None:
            self._keep(self._run, is_last=loop.epoch == loop.epochs)

    def _keep(self, run: Run, *, is_last: bool) -> None:
        look = self._auditor.last
        assert look is not None
        with together():
            if is_main_process():
                with run.writing():
                    run.save_pairs(self._auditor.found())
        write = log.info if is_last else log.debug
        write(
            "after epoch %d: %.1f%% of the pairs seem wrong (%.1f%% to %.1f%%), %d of %d are trained on",
            look.epoch, 100 * look.rate, 100 * look.low, 100 * look.high, len(look.drawn), len(look.scores),
        )  # fmt: skip
        if is_last and look.remembered > MEMORIZATION_THRESHOLD:
            log.warning(memorization_warning(look.remembered))
