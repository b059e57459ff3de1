"""Choice of the number of CPU threads of a training, by timing a few steps.

Torch's threads wait for one another by spinning. For small networks, and beside other processes, the waiting takes
longer than the work, so that one thread is often fastest.
"""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from contraport.data import Batch
from contraport.distributed import current_processes
from contraport.training.components import Components, num_cached_draws
from contraport.training.config import Settings
from contraport.training.distributed_setup import select_training_device
from contraport.training.step.training_module import TrainingModule

SLOW_STEP = 1.0
"""Seconds per step on one thread above which all threads are used without further timing."""

LARGE_NETWORK = 20_000_000
"""Number of weights above which all threads are used without timing."""

TIMED_STEPS = 5
"""Number of timed steps per number of threads, after one that is not timed."""

TIMING_BUDGET = 1.0
"""Seconds of timing per number of threads, after at least one timed step."""

REQUIRED_SPEEDUP = 0.9
"""More threads are chosen if a step takes less than this fraction of its time with fewer."""


@contextmanager
def thread_limit(number: int | None) -> Iterator[None]:
    """Context manager that sets the number of torch CPU threads; None changes nothing."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_thread_count(settings: Settings, components: Components) -> int | None:
    """Return the number of CPU threads: that of the settings, else the one with which a few steps are fastest.

    Results depend on the number of threads in their last bits. A run therefore records it, and a resumed run uses the
    recorded number.

    Returns None, for torch's default, on other devices, with several processes, if OMP_NUM_THREADS is set, and for
    training on cached features.
    """
    most, module = torch.get_num_threads(), components.module
    if settings.threads is not None or settings.resume:
        return settings.threads
    is_chosen = most == 1 or "OMP_NUM_THREADS" in os.environ or current_processes().size > 1
    if is_chosen or select_training_device(settings.device).type != "cpu" or num_cached_draws(settings) > 0:
        return None
    if sum(weights.numel() for weights in module.parameters()) >= LARGE_NETWORK:
        return most
    try:
        batch = components.dataset.__getitems__(list(range(settings.batch_size)))
        return find_fastest_thread_count(copy.deepcopy(module), batch, settings, most=most)
    except Exception:  # a module that cannot be copied is not timed; other errors recur in the training, with a message
        return None


@torch.random.fork_rng(devices=[])
def find_fastest_thread_count(module: TrainingModule, batch: Batch, settings: Settings, *, most: int) -> int:
    """Return the thread count, at most `most`, with the fastest steps; the timed steps change the module's state."""
    best, seconds = 1, measure_step_seconds(module, batch, settings, threads=1)
    if seconds >= SLOW_STEP:
        return most
    for number in [*(number for number in (2, 4) if number < most), most]:
        measured = measure_step_seconds(module, batch, settings, threads=number)
        if measured < REQUIRED_SPEEDUP * seconds:
            best, seconds = number, measured
    return best


def measure_step_seconds(module: TrainingModule, batch: Batch, settings: Settings, *, threads: int) -> float:
    """Measure the seconds of the forward and backward pass of a batch: the median, or the first if it is slow."""
    seconds: list[float] = []
    with thread_limit(threads):
        while len(seconds) <= TIMED_STEPS and (len(seconds) < 2 or sum(seconds) < TIMING_BUDGET):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.amp):
                loss = module(batch, 0)
            loss.backward()
            seconds.append(time.perf_counter() - start)
            if seconds[0] >= 2 * SLOW_STEP:
                return seconds[0]
    return statistics.median(seconds[1:])
