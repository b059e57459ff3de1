"""Timing of training steps for dry runs, thread counts and profiles."""

from __future__ import annotations

import copy
import logging
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import NamedTuple, cast

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from contraport._utils.files import atomic_write, write_text
from contraport._utils.formatting import format_significant
from contraport._utils.progress import ProgressBars
from contraport.data import Batch
from contraport.data.data_loader import BatchLoader
from contraport.distributed import current_processes
from contraport.embedding import evaluation_mode
from contraport.runs import RunFolder
from contraport.seeding import fork_rng_with_lock
from contraport.training.components.assembly import TrainingComponents
from contraport.training.components.data_builder import count_cached_draws
from contraport.training.components.model_builder import compile_encoders
from contraport.training.config import Settings
from contraport.training.loop import PROFILED_SECTION_NAMES, Callback, Loop
from contraport.training.optimization import build_loop
from contraport.training.parallelism import select_training_device
from contraport.training.step.training_module import TrainingModule

DRY_RUN_UNTIMED_STEPS = 2
"""Number of untimed first steps of a dry run, in which kernels are chosen and memory is allocated."""

DRY_RUN_TOTAL_STEPS = 7
"""Number of steps of a dry run, including the untimed ones."""

MIN_STEP_SECONDS_FOR_ALL_THREADS = 1.0
"""If a step on one thread takes this many seconds, all threads are used, and no other number of threads is timed."""

log = logging.getLogger("contraport.training")


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
        encoding = f"{_format_duration(cache_seconds)} to encode the items once, " if cache_seconds else ""
        total = _format_duration(cache_seconds + steps * self.median_step_seconds)
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
    """Training batches of a dry run, all in one epoch.

    With a feature cache the views are random features, since the values do not affect the timing.
    """

    def __init__(self, settings: Settings, components: TrainingComponents) -> None:
        model, views = components.module.model, components.module.views
        widths = [model.tower(view).num_features for view in range(len(views.shapes))]
        self.batch_sampler = components.batches.batch_sampler
        self._batches = components.batches
        self._number = DRY_RUN_TOTAL_STEPS * settings.grad_accum_steps
        cached_draws = count_cached_draws(settings)
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
    device, module = select_training_device(settings.device), components.module
    bars = ProgressBars(shown=settings.progress)
    module.to(device).train()
    if settings.compile:
        compile_encoders(module.list_all_encoders())
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    draws, feature_cache_seconds = count_cached_draws(settings), 0.0
    if draws > 0:
        encoded_batches = draws * len(components.dataset) / settings.batch_size
        feature_cache_seconds = encoded_batches * _measure_batch_encoding_seconds(components, device, bars)
        module.uses_cached_features = True
    timer, batches = _StepTimer(bars), cast(BatchLoader, _DryRunBatches(settings, components))
    loop = build_loop(settings, module, batches, device, [timer], steps_per_epoch=components.steps_per_epoch)
    loop.epochs = 1
    try:
        with temporary_thread_count(choose_thread_count(settings, components)):
            loop.run()
    finally:
        components.batches.close()
    step_seconds = statistics.median(timer.seconds[DRY_RUN_UNTIMED_STEPS:])
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:  # macOS reports bytes, Linux KiB
        peak = (1 if sys.platform == "darwin" else 1024) * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return DryRunResult(step_seconds, feature_cache_seconds, peak, device)


def _measure_batch_encoding_seconds(components: TrainingComponents, device: torch.device, bars: ProgressBars) -> float:
    """Return the median seconds to load and encode a batch."""
    module, batches, seconds = components.module, chain.from_iterable(repeat(components.batches)), []
    with evaluation_mode(module.model):
        for _ in bars.track(range(DRY_RUN_TOTAL_STEPS), "timing the encoder", DRY_RUN_TOTAL_STEPS):
            start = time.perf_counter()
            module.model.encode(module.views(next(batches).to(device).views))
            _synchronize_device(device)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[DRY_RUN_UNTIMED_STEPS:])


def _synchronize_device(device: torch.device) -> None:
    """Wait until the device has finished its work; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _format_duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours.

    >>> _format_duration(59.4), _format_duration(61), _format_duration(3 * 3600)
    ('59 seconds', '1 minute', '3.0 hours')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} second{'s' if round(seconds) > 1 else ''}"
    if seconds < 2 * 3600:
        return f"{round(seconds / 60)} minute{'s' if round(seconds / 60) > 1 else ''}"
    return f"{seconds / 3600:.1f} hours"


@contextmanager
def temporary_thread_count(threads: int | None) -> Iterator[None]:
    """Context manager that sets the number of torch CPU threads; None changes nothing."""
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def choose_thread_count(settings: Settings, components: TrainingComponents) -> int | None:
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
    if is_chosen or select_training_device(settings.device).type != "cpu" or count_cached_draws(settings) > 0:
        return None
    if sum(weights.numel() for weights in module.parameters()) >= 20_000_000:
        return most  # not timed: large models gain from every thread
    try:
        batch = components.dataset.__getitems__(list(range(settings.batch_size)))
        return measure_fastest_thread_count(copy.deepcopy(module), batch, settings, max_threads=most)
    except Exception:  # a module that cannot be copied is not timed; other errors recur in the training, with a message
        return None


@fork_rng_with_lock([])
def measure_fastest_thread_count(module: TrainingModule, batch: Batch, settings: Settings, *, max_threads: int) -> int:
    """Return the thread count with the fastest steps, changing the module's state."""
    best, seconds = 1, measure_gradient_seconds(module, batch, settings, threads=1)
    if seconds >= MIN_STEP_SECONDS_FOR_ALL_THREADS:
        return max_threads
    for number in [*(number for number in (2, 4) if number < max_threads), max_threads]:
        measured = measure_gradient_seconds(module, batch, settings, threads=number)
        if measured < 0.9 * seconds:  # more threads must save a tenth
            best, seconds = number, measured
    return best


def measure_gradient_seconds(module: TrainingModule, batch: Batch, settings: Settings, *, threads: int) -> float:
    """Return the median seconds of a forward and backward pass."""
    seconds: list[float] = []
    with temporary_thread_count(threads):
        # An untimed step, then one to five timed steps within a second.
        while len(seconds) <= 5 and (len(seconds) < 2 or sum(seconds) < 1):
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.amp):
                loss = module(batch, 0)
            loss.backward()
            seconds.append(time.perf_counter() - start)
            if seconds[0] >= 2 * MIN_STEP_SECONDS_FOR_ALL_THREADS:
                return seconds[0]
    return statistics.median(seconds[1:])


class ProfilerCallback(Callback):
    """Callback that profiles ten steps, to `profile/trace.json` and `profile/steps.txt`."""

    def __init__(self, run: RunFolder) -> None:
        self._run = run
        self._profiler: profile | None = None

    def on_start(self, loop: Loop) -> None:
        activities = [ProfilerActivity.CPU]
        if loop.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=5, warmup=2, active=10, repeat=1),
            on_trace_ready=self._write_profile,
        )
        self._profiler.start()

    def after_batch(self, loop: Loop) -> None:
        if self._profiler is not None and loop.completed_micro_batches == 0:
            self._profiler.step()

    def on_end(self, loop: Loop) -> None:
        # A session shorter than the recorded steps is recorded up to its end.
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        if not self._run.profile_path.exists():
            log.warning("profile: nothing was recorded; it requires more than 7 steps.")

    def on_exception(self, loop: Loop, error: BaseException) -> None:
        # The files of a failed session are not written.
        if self._profiler is not None:
            self._profiler.on_trace_ready = None
            self._profiler.stop()
            self._profiler = None

    def _write_profile(self, profiler: profile) -> None:
        """Write the profile, and log each part's share of CPU time."""
        events = profiler.key_averages()
        where = "cuda" if ProfilerActivity.CUDA in profiler.activities else "cpu"
        with self._run.translate_write_errors():
            self._run.profile_path.mkdir(exist_ok=True)
            with atomic_write(self._run.profile_path / "trace.json") as temporary:
                profiler.export_chrome_trace(str(temporary))
            table = events.table(sort_by=f"self_{where}_time_total", row_limit=30)
            write_text(self._run.profile_path / "steps.txt", table)
        seconds = {event.key: event.cpu_time_total / 1e6 for event in events if event.key in PROFILED_SECTION_NAMES}
        total = sum(seconds.values())
        shares = ", ".join(f"{name} {seconds.get(name, 0) / total:.0%}" for name in PROFILED_SECTION_NAMES)
        log.info("CPU time of 10 steps: %s; see %s", shares, self._run.profile_path)
