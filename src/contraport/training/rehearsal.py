"""A few steps of a training, taken to see how long all of it takes and how much memory it needs; nothing is kept."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from contraport.data import Batch
from contraport.embedding import frozen
from contraport.progress import Bars
from contraport.training.build import Built, draws_kept
from contraport.training.frozen import device_of
from contraport.training.loop.optimization import optimizer_of
from contraport.verbs.train import Settings
from contraport.wording import rounded

FIRST = 2
"""So many steps are not measured: in the first, kernels are chosen and memory is taken."""

MEASURED = 5

_ALL = range(FIRST + MEASURED)


class Rehearsal(NamedTuple):
    """What a few steps tell.

    Attributes:
        seconds: of a step, the median.
        beforehand: seconds that a frozen encoder takes to make the features that are kept; 0 where none are.
        memory: bytes at most, of the device, or on a processor of the whole process.
        device: where they were taken.
    """

    seconds: float
    beforehand: float
    memory: int
    device: torch.device

    def told(self, steps: int) -> str:
        """Return in a line what they tell of a training of so many steps.

        >>> Rehearsal(0.5, 60.0, 3 * 2**30, torch.device("cpu")).told(600)
        'about 6 minutes on cpu: 1 minute to encode the items once, and 600 steps of 0.5 s; at most 3.0 GiB of memory'
        """
        encoding = f"{_lasting(self.beforehand)} to encode the items once, and " if self.beforehand else ""
        return (
            f"about {_lasting(self.beforehand + steps * self.seconds)} on {self.device}: {encoding}{steps:,} steps of "
            f"{rounded(self.seconds)} s; at most {self.memory / 2**30:.1f} GiB of memory"
        )


@torch.random.fork_rng()
def rehearse(settings: Settings, built: Built) -> Rehearsal:
    """Return what a few steps of a training tell; its weights are others afterwards.

    Data are fetched, views made and weights moved as in the training; checkpoints, evaluation on the way and several
    processes are not counted.
    """
    device, pipeline, bars = device_of(settings.device), built.pipeline, Bars(shown=settings.progress)
    pipeline.to(device).train()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    optimizer = optimizer_of(settings, pipeline, pipeline.model.encoders)
    batches, draws = _endless(built), draws_kept(settings)
    beforehand = 0.0
    if draws > 0:
        beforehand = draws * len(built.dataset) / settings.batch_size * _seconds_to_encode(built, device, batches, bars)
        pipeline.encoded = True
    seconds = []
    for step in bars.track(_ALL, "a few steps, to see how long one takes", len(_ALL)):
        start = time.perf_counter()
        for part in range(settings.accumulate):
            batch = next(batches).to(device)
            if pipeline.encoded:
                batch = _of_features(batch, built, draws)
            with torch.autocast(device.type, torch.bfloat16, enabled=settings.amp):
                loss: Tensor = pipeline(batch, step, part)
            (loss / settings.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        pipeline.after_step(step)
        _wait(device)
        seconds.append(time.perf_counter() - start)
    built.batches.close()
    return Rehearsal(statistics.median(seconds[FIRST:]), beforehand, _memory(device), device)


def _seconds_to_encode(built: Built, device: torch.device, batches: Iterator[Batch], bars: Bars) -> float:
    """Return how long a frozen encoder takes for the random views of a batch, the median."""
    pipeline, seconds = built.pipeline, []
    with frozen(pipeline.model):
        for _ in bars.track(_ALL, "a few batches, to see how long the encoder takes", len(_ALL)):
            start = time.perf_counter()
            pipeline.model.encode(pipeline.views(next(batches).to(device).views))
            _wait(device)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[FIRST:])


def _of_features(batch: Batch, built: Built, draws: int) -> Batch:
    """Return a batch with random numbers for features, which take as long."""
    model, views = built.pipeline.model, built.pipeline.views
    widths = [model.tower(view).num_features for view in range(len(views.shapes))]
    features = tuple(torch.randn(len(batch.ids), draws, width, device=batch.ids.device) for width in widths)
    return batch._replace(views=features)


def _endless(built: Built) -> Iterator[Batch]:
    while True:
        yield from built.batches


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
