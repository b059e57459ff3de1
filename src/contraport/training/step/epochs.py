"""Epochs without a run folder: for the estimators, and for encoders that are trained to be asked once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from contraport.data.loading import Loader, StreamLoader
from contraport.errors import check
from contraport.training.step.pipeline import Pipeline


def losses_by_epoch(
    pipeline: Pipeline,
    batches: Loader | StreamLoader,
    optimizer: Optimizer,
    schedule: LRScheduler,
    *,
    step: int,
    device: str,
) -> Iterator[float]:
    """Yield the mean loss of one epoch after another; torch's random state stays as it is.

    Args:
        pipeline: makes the loss; it is on the device.
        batches: of an epoch; which one is the caller's to say.
        optimizer: of the pipeline.
        schedule: of the optimiser, a step at a time.
        step: how many steps were taken before.
        device: where to compute.

    Raises:
        UsageError: a loss is not finite.
    """
    while True:
        losses = []
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            for batch in batches:
                loss = pipeline.train()(batch.to(device), step)
                losses.append(float(loss.detach()))
                check(math.isfinite(losses[-1]), f"lr: the loss was not finite after {step} steps; lower it.")
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                pipeline.after_step(step)
                schedule.step()
                step += 1
        yield sum(losses) / len(losses)
