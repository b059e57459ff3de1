"""What a training will be, told before it begins: its items, its steps, and what is too little to learn from."""

from __future__ import annotations

import logging
from pathlib import Path

from contraport.data import Dataset
from contraport.runs.settings import Settings
from contraport.training.step.comparison import Comparison

FEW_STEPS = 200
"""With fewer steps an encoder has hardly left where it began."""

log = logging.getLogger("contraport.training")


def foretell(settings: Settings, dataset: Dataset, comparison: Comparison, *, steps: int) -> None:
    """Log what will happen, and warn, with what to do, of too few steps or too small batches.

    Args:
        settings: of the training.
        dataset: what is trained on.
        comparison: makes the loss of a batch.
        steps: of the whole training.
    """
    if dataset.held_out is not None:
        log.info("%s more are held out, to evaluate on; --test_fraction says how many", f"{dataset.held_out:,}")
    elif isinstance(settings.data, str | Path):
        log.info("the test split that the data have is held out, to evaluate on")
    size, epochs = settings.batch_size, settings.epochs
    batches, left_out = divmod(len(dataset), size)
    summed = f", {settings.accumulate} to a step" if settings.accumulate > 1 else ""
    rest = f"; an epoch leaves out {left_out} items, each time others" if left_out else ""
    log.info("%s steps: %d epochs of %d batches of %d items%s%s", f"{steps:,}", epochs, batches, size, summed, rest)
    if steps < FEW_STEPS:
        log.warning(
            "%d steps are few: below about %d little is learned; more --epochs or a smaller --batch_size give more",
            steps,
            FEW_STEPS,
        )
    if doubt := comparison.doubt(size):
        log.warning("%s", doubt)
