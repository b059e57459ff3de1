"""Dry run, which estimates time and peak memory from a few training steps."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import NamedTuple, cast

import torch

from contraport._utils.formatting import format_significant, pluralize
from contraport._utils.progress import ProgressBars
from contraport.data import Batch
from contraport.data.data_loader import ClosableDataLoader
from contraport.embedding import inference_mode
from contraport.seeding import fork_rng_with_lock
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.data_builder import count_draws_to_cache
from contraport.training.components.model_builder import compile_encoders
from contraport.training.config import Settings
from contraport.training.data_parallelism import resolve_available_device
from contraport.training.loop import Callback, Loop
from contraport.training.optimization import build_loop
from contraport.training.thread_count import configured_or_fastest_thread_count, temporary_thread_count

DRY_RUN_UNTIMED_STEPS = 2
"""Number of untimed first steps of a dry run, in which kernels are chosen and memory is allocated."""

DRY_RUN_TOTAL_STEPS = 7
"""Number of steps of a dry run, including the untimed ones."""


class DryRunResult(NamedTuple):
    """Time per step and peak memory that a dry run measured.

    Attributes:
        median_step_seconds: median seconds per optimizer step.
        feature_cache_seconds: estimated seconds to cache the features of a frozen encoder; 0 without a cache.
        peak_memory_bytes: peak memory in bytes: of the GPU, or of the whole process on a CPU.
    """

    median_step_seconds: float
    feature_cache_seconds: float
    peak_memory_bytes: int
    device: torch.device

    def format_estimate(self, steps: int) -> str:
        """Return one line that estimates a training run's time and memory.

        >>> DryRunResult(0.5, 60.0, 3 * 2**30, torch.device("cpu")).format_estimate(600)
        'estimate: 6 minutes on cpu (1 minute to encode the items once, 600 steps of 0.5 s); peak memory 3.0 GiB'
        """
        cache_seconds = self.feature_cache_seconds
        encoding = f"{format_duration(cache_seconds)} to encode the items once, " if cache_seconds else ""
        total = format_duration(cache_seconds + steps * self.median_step_seconds)
        each = format_significant(self.median_step_seconds)
        return (
            f"estimate: {total} on {self.device} ({encoding}{steps:,} steps of {each} s); "
            f"peak memory {self.peak_memory_bytes / 2**30:.1f} GiB"
        )


class _StepTimer(Callback):
    """Callback that times each step, including the wait for data."""

    def __init__(self, bars: ProgressBars) -> None:
        self.seconds: list[float] = []
        self._shown = iter(bars.track(range(DRY_RUN_TOTAL_STEPS), "timing steps", DRY_RUN_TOTAL_STEPS))

    def on_start(self, loop: Loop) -> None:
        next(self._shown)
        self._start = time.perf_counter()

    def after_batch(self, loop: Loop) -> None:
        if loop.completed_micro_batches == 0:
            _synchronize_device(loop.device)
            self.seconds.append(time.perf_counter() - self._start)
            next(self._shown, None)
            self._start = time.perf_counter()


class _DryRunBatches:
    """Training batches of a dry run, counted as one epoch.

    With a feature cache the views are random features, since the values do not affect the timing.
    """

    def __init__(self, settings: Settings, components: TrainingComponents) -> None:
        model, views = components.module.model, components.module.views
        widths = [model.tower(view).num_features for view in range(len(views.shapes))]
        self.batch_sampler = components.batches.batch_sampler
        self._batches = components.batches
        self._number = DRY_RUN_TOTAL_STEPS * settings.grad_accum_steps
        cached_draws = count_draws_to_cache(settings)
        self._feature_shapes = [(cached_draws, width) for width in widths] if cached_draws > 0 else None

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Batch]:
        for batch in islice(chain.from_iterable(repeat(self._batches)), self._number):
            if self._feature_shapes is not None:
                batch = batch._replace(views=tuple(torch.randn(len(batch.ids), *one) for one in self._feature_shapes))
            yield batch


@fork_rng_with_lock()
def train_timed_steps(settings: Settings, components: TrainingComponents) -> DryRunResult:
    """Train for a few steps, and return their time and memory.

    This changes the weights. Loading, augmentation and optimizer steps are those of the training. Checkpoints and
    online metrics are not included.
    """
    device, module = resolve_available_device(settings.device), components.module
    bars = ProgressBars(shown=settings.progress)
    module.to(device).train()
    if settings.compile:
        compile_encoders(module.list_all_encoders())
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    draws, feature_cache_seconds = count_draws_to_cache(settings), 0.0
    if draws > 0:
        encoded_batches = draws * len(components.dataset) / settings.batch_size
        feature_cache_seconds = encoded_batches * _measure_batch_load_and_encode_seconds(components, device, bars)
        module.uses_cached_features = True
    timer, batches = _StepTimer(bars), cast(ClosableDataLoader, _DryRunBatches(settings, components))
    loop = build_loop(settings, module, batches, device, [timer], steps_per_epoch=components.steps_per_epoch)
    loop.epochs = 1
    try:
        with temporary_thread_count(configured_or_fastest_thread_count(settings, components)):
            loop.run()
    finally:
        components.batches.close()
    step_seconds = statistics.median(timer.seconds[DRY_RUN_UNTIMED_STEPS:])
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:  # macOS reports bytes, Linux KiB
        peak = (1 if sys.platform == "darwin" else 1024) * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return DryRunResult(step_seconds, feature_cache_seconds, peak, device)


def _measure_batch_load_and_encode_seconds(
    components: TrainingComponents, device: torch.device, bars: ProgressBars
) -> float:
    """Measure the median seconds to load a batch and encode its random views."""
    module, batches, seconds = components.module, chain.from_iterable(repeat(components.batches)), []
    with inference_mode(module.model):
        for _ in bars.track(range(DRY_RUN_TOTAL_STEPS), "timing the encoder", DRY_RUN_TOTAL_STEPS):
            start = time.perf_counter()
            module.model.encode(module.views(next(batches).to(device).views))
            _synchronize_device(device)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[DRY_RUN_UNTIMED_STEPS:])


def _synchronize_device(device: torch.device) -> None:
    """Wait until the GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> format_duration(59.4), format_duration(61), format_duration(3 * 3600)
    ('59 seconds', '1 minute', '3.0 hours')
    """
    if seconds < 60:
        return pluralize(max(1, round(seconds)), "second")
    if seconds < 2 * 3600:
        return pluralize(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"
