"""Threads of a training on a processor: as many as make its steps fast."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from contraport.data import Batch
from contraport.distributed import world
from contraport.training.components import Components, num_cached_draws
from contraport.training.config import Settings
from contraport.training.parallel import resolve_device
from contraport.training.step.training_module import TrainingModule

LARGE = 1.0
"""Seconds of a step on one thread from which on all threads are taken: each has enough to do."""

MANY_WEIGHTS = 20_000_000
"""A network of so many weights is large without being timed."""

TIMED = 5
"""Steps that are timed with each number of threads, after one that is not."""

BUDGET = 1.0
"""Seconds after which no further step is timed with a number of threads, if one was."""

GAIN = 0.9
"""More threads are taken where a step takes at most this part of its time with fewer."""


@contextmanager
def thread_limit(number: int | None) -> Iterator[None]:
    """Let torch compute with so many threads within the block; None changes nothing."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_threads(settings: Settings, built: Components) -> int | None:
    """Return how many threads a training takes: those of its settings, or those that make a few steps of it fast.

    The threads of torch wait for one another spinning. For small networks, and beside other processes, that takes
    longer than the work. Results differ in their last bits with the number of threads, so a run records it, and a
    resumed run takes what was recorded.

    Returns None, which is torch's own number, on other devices, for several processes, where OMP_NUM_THREADS is set,
    and where the features of a frozen encoder are trained on. A copy of the pipeline takes the steps.
    """
    most, pipeline = torch.get_num_threads(), built.pipeline
    if settings.threads is not None or settings.resume:
        return settings.threads
    is_chosen = most == 1 or "OMP_NUM_THREADS" in os.environ or world().size > 1
    if is_chosen or resolve_device(settings.device).type != "cpu" or num_cached_draws(settings) > 0:
        return None
    if sum(weights.numel() for weights in pipeline.parameters()) >= MANY_WEIGHTS:
        return most
    try:
        batch = built.dataset.__getitems__(list(range(settings.batch_size)))
        return fastest(copy.deepcopy(pipeline), batch, settings, most=most)
    except Exception:  # what cannot be copied is not timed; what fails here fails in the training, which says why
        return None


@torch.random.fork_rng(devices=[])
def fastest(pipeline: TrainingModule, batch: Batch, settings: Settings, *, most: int) -> int:
    """Return how many threads, `most` at most, make the steps of a pipeline fast; its state is another afterwards."""
    best, seconds = 1, time_step(pipeline, batch, settings, threads=1)
    if seconds >= LARGE:
        return most
    for number in [*(number for number in (2, 4) if number < most), most]:
        found = time_step(pipeline, batch, settings, threads=number)
        if found < GAIN * seconds:
            best, seconds = number, found
    return best


def time_step(pipeline: TrainingModule, batch: Batch, settings: Settings, *, threads: int) -> float:
    """Return how long the loss of a batch and its gradient take, the median; of a large network, of its first step."""
    seconds: list[float] = []
    with thread_limit(threads):
        while len(seconds) <= TIMED and (len(seconds) < 2 or sum(seconds) < BUDGET):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.amp):
                loss = pipeline(batch, 0)
            loss.backward()
            seconds.append(time.perf_counter() - start)
            if seconds[0] >= 2 * LARGE:
                return seconds[0]
    return statistics.median(seconds[1:])
