"""Training callback that runs the online audit between epochs."""

from __future__ import annotations

import logging
from typing import Any

from contraport.auditing.pairs.pair_filter import MEMORIZATION_THRESHOLD, PairFilter, memorization_warning
from contraport.distributed import is_main_process, propagate_errors
from contraport.runs import Run
from contraport.training.loop import Callback, Loop

log = logging.getLogger("contraport.training")


class AuditCallback(Callback):
    """Training callback that scores the pairs between epochs, before the checkpoint is written.

    Args:
        pair_filter: scores the pairs and selects those that are trained on.
        run: the run folder to write the scores to; default: none.
    """

    def __init__(self, pair_filter: PairFilter, run: Run | None = None) -> None:
        self._filter = pair_filter
        self._run = run

    def state(self) -> dict[str, Any]:
        """Return the state of the audit, to be stored in a checkpoint."""
        return self._filter.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the state of the audit from a checkpoint, with its selection of training pairs."""
        self._filter.restore(state)

    def after_epoch(self, loop: Loop) -> None:
        """Score the pairs if a scoring is due after this epoch, then log and save the scores."""
        with propagate_errors():
            is_due = self._filter.score_if_due(loop.completed_epochs)
        if is_due and self._run is not None:
            self._save(self._run, is_last=loop.completed_epochs == loop.epochs)

    def _save(self, run: Run, *, is_last: bool) -> None:
        state = self._filter.last_state
        assert state is not None
        with propagate_errors():
            if is_main_process():
                with run.translate_write_errors():
                    run.save_pair_scores(self._filter.result_arrays())
        write = log.info if is_last else log.debug
        write(
            "Epoch %d: %.1f%% of the pairs look wrong (95%% interval %.1f-%.1f); training on %d of %d.",
            state.trained_epochs, 100 * state.noise_rate, 100 * state.noise_rate_low, 100 * state.noise_rate_high,
            len(state.training_positions), len(state.mean_scores),
        )  # fmt: skip
        if is_last and state.memorization_rate > MEMORIZATION_THRESHOLD:
            log.warning(memorization_warning(state.memorization_rate))
