"""Dry run: estimates time and peak memory of a training from a few of its steps; writes nothing."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from contraport._utils.formatting import format_significant
from contraport._utils.progress import ProgressBars
from contraport.data import Batch
from contraport.data.data_loader import Loader, StreamLoader
from contraport.embedding import evaluation_mode
from contraport.training.components import Components, num_cached_draws
from contraport.training.components.model_builder import compile_encoders
from contraport.training.config import Settings
from contraport.training.loop import Callback, Loop
from contraport.training.optimization import build_lr_schedule, build_optimizer
from contraport.training.parallel import resolve_device
from contraport.training.threads import choose_threads, thread_limit

FIRST = 2
"""Steps that are not measured: in the first, kernels are chosen and memory is allocated."""

MEASURED = 5

_ALL = range(FIRST + MEASURED)


class DryRun(NamedTuple):
    """Time and memory of a few steps.

    Attributes:
        seconds: of a step, the median.
        beforehand: seconds to compute the features of a frozen encoder that are cached; 0 where none are.
        memory: largest number of bytes in use, of the device, or on a processor of the whole process.
        device: where the steps were taken.
    """

    seconds: float
    beforehand: float
    memory: int
    device: torch.device

    def summary(self, steps: int) -> str:
        """Return in a line the estimate for a training of so many steps.

        >>> DryRun(0.5, 60.0, 3 * 2**30, torch.device("cpu")).summary(600)
        'about 6 minutes on cpu: 1 minute to encode the items once, and 600 steps of 0.5 s; at most 3.0 GiB of memory'
        """
        encoding = f"{_lasting(self.beforehand)} to encode the items once, and " if self.beforehand else ""
        return (
            f"about {_lasting(self.beforehand + steps * self.seconds)} on {self.device}: {encoding}{steps:,} steps of "
            f"{format_significant(self.seconds)} s; at most {self.memory / 2**30:.1f} GiB of memory"
        )


class _Done(Exception):  # noqa: N818 - the end of a dry run
    """Enough steps were timed."""


class _Timer(Callback):
    """Times each step of a few, with the time that it waits for its batches; then ends the training."""

    def __init__(self, bars: ProgressBars) -> None:
        self.seconds: list[float] = []
        self._shown = iter(bars.track(_ALL, "a few steps, to see how long one takes", len(_ALL)))

    def on_start(self, loop: Loop) -> None:
        next(self._shown)
        self._start = time.perf_counter()

    def after_batch(self, loop: Loop) -> None:
        if loop.part > 0:
            return
        _wait(loop.device)
        self.seconds.append(time.perf_counter() - self._start)
        if next(self._shown, None) is None:
            raise _Done
        self._start = time.perf_counter()


class _FeatureBatches:
    """Batches of random numbers in the place of cached features, which take as long to train on."""

    def __init__(self, built: Components, draws: int) -> None:
        model, views = built.pipeline.model, built.pipeline.views
        self.batch_sampler = built.batches.batch_sampler
        self._batches = built.batches
        self._shapes = [(draws, model.tower(view).num_features) for view in range(len(views.shapes))]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            yield batch._replace(views=tuple(torch.randn(len(batch.ids), *shape) for shape in self._shapes))


@torch.random.fork_rng()
def dry_run(settings: Settings, built: Components) -> DryRun:
    """Return time and memory of a few steps of a training; its weights are others afterwards.

    Data are fetched, views made and weights moved as in the training; checkpoints, evaluation on the way and several
    processes are not counted.
    """
    device, pipeline, bars = resolve_device(settings.device), built.pipeline, ProgressBars(shown=settings.progress)
    pipeline.to(device).train()
    if settings.compile:
        for model in pipeline.encoding():
            compile_encoders(model)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    draws, beforehand = num_cached_draws(settings), 0.0
    batches: Any = built.batches
    if draws > 0:
        beforehand = draws * len(built.dataset) / settings.batch_size * _seconds_to_encode(built, device, bars)
        pipeline.encoded = True
        batches = _FeatureBatches(built, draws)
    optimizer, timer = build_optimizer(settings, pipeline, pipeline.model.encoders), _Timer(bars)
    loop = Loop(
        pipeline,
        batches,
        optimizer,
        build_lr_schedule(optimizer, lr_scheduler="constant", steps=1, warmup=0),
        epochs=len(_ALL),
        device=device,
        grad_accum_steps=settings.grad_accum_steps,
        gradient_clip=settings.gradient_clip,
        amp=settings.amp,
        callbacks=[timer],
    )
    try:
        with thread_limit(choose_threads(settings, built)):
            loop.run()
    except _Done:
        pass
    finally:
        built.batches.close()
    return DryRun(statistics.median(timer.seconds[FIRST:]), beforehand, _memory(device), device)


def _seconds_to_encode(built: Components, device: torch.device, bars: ProgressBars) -> float:
    """Return how long a frozen encoder takes for the random views of a batch, the median."""
    pipeline, batches, seconds = built.pipeline, _endless(built.batches), []
    with evaluation_mode(pipeline.model):
        for _ in bars.track(_ALL, "a few batches, to see how long the encoder takes", len(_ALL)):
            start = time.perf_counter()
            pipeline.model.encode(pipeline.views(next(batches).to(device).views))
            _wait(device)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[FIRST:])


def _endless(batches: Loader | StreamLoader) -> Iterator[Batch]:
    while True:
        yield from batches


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _memory(device: torch.device) -> int:
    """Return the most bytes that were in use, of a GPU, or else of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _lasting(seconds: float) -> str:
    """Return a time in words.

    >>> _lasting(59.4), _lasting(61), _lasting(3 * 3600)
    ('59 seconds', '1 minute', '3.0 hours')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} second{'s' if round(seconds) > 1 else ''}"
    if seconds < 2 * 3600:
        return f"{round(seconds / 60)} minute{'s' if round(seconds / 60) > 1 else ''}"
    return f"{seconds / 3600:.1f} hours"
