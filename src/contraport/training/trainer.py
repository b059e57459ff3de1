"""Lightning's trainer, tamed: it writes where we say, says nothing of its own, and lets Ctrl-C through."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch import Trainer
from rich.console import Console
from torch.utils.data import DataLoader

from contraport.data import Batch
from contraport.runs import Run, replacing
from contraport.training.arguments import DEVICES
from contraport.training.callbacks import Checkpoints, FiniteGuard, Meter, ProgressBar, TimedLoader
from contraport.training.task import ContrastiveTask


class WholeCheckpoints(TorchCheckpointIO):
    """Writes a checkpoint whole or not at all."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write it beside its place, then move it there."""
        with replacing(Path(path)) as temporary:
            torch.save(checkpoint, temporary)


def fit(
    task: ContrastiveTask,
    batches: DataLoader[Batch],
    run: Run,
    *,
    epochs: int,
    device: str,
    amp: bool,
    log_every: int,
    keep_every: int | None,
    checkpoint: Path | None,
    console: Console,
) -> Meter:
    """Train until `epochs` are done, from a checkpoint where one is given, and return what was measured.

    Raises:
        FloatingPointError: the loss or its gradient is not finite.
        KeyboardInterrupt: Ctrl-C; the message says how to go on.
    """
    loader = TimedLoader(batches)
    meter = Meter(run, loader, every=log_every)
    callbacks = [
        FiniteGuard(run, seed=task.seed),
        meter,
        Checkpoints(run, keep_every=keep_every),
        ProgressBar(console, meter),
    ]
    with _quiet(), _interruptible(run), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        trainer = Trainer(
            max_epochs=epochs,
            accelerator=DEVICES[device],
            devices=1,
            precision="bf16-mixed" if amp else "32-true",
            callbacks=callbacks,
            plugins=[WholeCheckpoints()],
            default_root_dir=run.path,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(task, loader, ckpt_path=checkpoint, weights_only=True)
    return meter


@contextmanager
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"lightning\.")
            warnings.filterwarnings("ignore", module=r"torch\.utils\._pytree")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def _interruptible(run: Run) -> Iterator[None]:
    """Undo what Lightning makes of Ctrl-C: it ignores the signal from then on, and exits."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stop:
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt(
            f"stopped; every whole epoch is kept. Go on with: contraport train --resume --out {run.path}"
        ) from stop
