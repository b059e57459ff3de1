"""Choice of the number of CPU threads by timing trial steps."""

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
from contraport.seeding import fork_rng_with_lock
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.data_builder import count_draws_to_cache
from contraport.training.config import Settings
from contraport.training.data_parallelism import resolve_available_device
from contraport.training.step.training_module import TrainingModule

MIN_STEP_SECONDS_FOR_ALL_THREADS = 1.0
"""If a step on one thread takes this many seconds, all threads are used, and no other number of threads is timed."""


@contextmanager
def temporary_thread_count(threads: int | None) -> Iterator[None]:
    """Context manager that sets the number of torch CPU threads, unless it is None."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def configured_or_fastest_thread_count(settings: Settings, components: TrainingComponents) -> int | None:
    """Return the number of CPU threads to train with.

    It is the option `threads`, else the number with which trial steps are fastest. Results depend on the number of
    threads in their last bits. A run therefore records it, and a resumed run uses the recorded number.

    Returns None, for torch's default, on other devices, with several processes, if OMP_NUM_THREADS is set, and for
    training on cached features.
    """
    most, module = torch.get_num_threads(), components.module
    if settings.threads is not None or settings.resume:
        return settings.threads
    is_chosen = most == 1 or "OMP_NUM_THREADS" in os.environ or current_processes().size > 1
    if is_chosen or resolve_available_device(settings.device).type != "cpu" or count_draws_to_cache(settings) > 0:
        return None
    if sum(weights.numel() for weights in module.parameters()) >= 20_000_000:
        return most  # not timed: large models gain from every thread
    try:
        batch = components.dataset.__getitems__(list(range(settings.batch_size)))
        return measure_fastest_thread_count(copy.deepcopy(module), batch, max_threads=most, amp=settings.amp)
    except Exception:  # a module that cannot be copied is not timed; other errors recur in the training, with a message
        return None


@fork_rng_with_lock([])
def measure_fastest_thread_count(module: TrainingModule, batch: Batch, *, max_threads: int, amp: bool) -> int:
    """Return the number of threads with the fastest forward and backward pass."""
    best, seconds = 1, measure_forward_backward_seconds(module, batch, threads=1, amp=amp)
    if seconds >= MIN_STEP_SECONDS_FOR_ALL_THREADS:
        return max_threads
    for number in [*(number for number in (2, 4) if number < max_threads), max_threads]:
        measured = measure_forward_backward_seconds(module, batch, threads=number, amp=amp)
        if measured < 0.9 * seconds:  # more threads must save a tenth
            best, seconds = number, measured
    return best


def measure_forward_backward_seconds(module: TrainingModule, batch: Batch, *, threads: int, amp: bool) -> float:
    """Return the median seconds of a forward and backward pass."""
    seconds: list[float] = []
    with temporary_thread_count(threads):
        # An untimed step, then one to five timed steps within a second.
        while len(seconds) <= 5 and (len(seconds) < 2 or sum(seconds) < 1):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = module(batch, 0)
            loss.backward()
            seconds.append(time.perf_counter() - start)
            if seconds[0] >= 2 * MIN_STEP_SECONDS_FOR_ALL_THREADS:
                return seconds[0]
    return statistics.median(seconds[1:])
