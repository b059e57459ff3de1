"""The way from a dataset to batches: an order that depends only on the seed and the epoch.

Under `torch.distributed` the processes may share each batch: each holds a contiguous part of it, see `local_share`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from contraport import distributed
from contraport.data.dataset import Batch, Dataset
from contraport.data.streams import Stream
from contraport.errors import UsageError, check
from contraport.options import accept_deprecated
from contraport.seeding import generator

_MOST_WORKERS = 8


@dataclass(frozen=True)
class Share:
    """Which items of a global batch this process holds: `start` and those after it, of `total`.

    Raises:
        UsageError: a start outside the batch.
    """

    start: int
    total: int

    def __post_init__(self) -> None:
        check(0 <= self.start < self.total, f"share: expected 0 <= start < total, got {self.start} and {self.total}.")


def local_share(total: int) -> Share:
    """Return which items of a batch of `total` this process holds, where processes share each batch.

    The parts follow each other in the order of the ranks and differ by one item at most; `loader(..., shared=True)`
    gives them. A training leaves out smaller last batches, so there `total` is always its batch size.

    >>> local_share(256)
    Share(start=0, total=256)
    """
    return Share(_own_part(total).start, total)


class _Drawn(list[int]):
    """The positions of a batch, which know in which epoch they are drawn."""

    def __init__(self, positions: list[int], epoch: int) -> None:
        super().__init__(positions)
        self.epoch = epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return _Drawn, (list(self), self.epoch)


class BatchOrder(Sampler[list[int]]):
    """The positions of each batch, or of this process's part of it; they depend on nothing but the seed and the epoch.

    >>> order = BatchOrder(5, batch_size=2, shuffle=True, seed=0)
    >>> first = list(order)
    >>> [len(batch) for batch in first]
    [2, 2, 1]
    >>> order.begin_at(epoch=0, batch=1)
    >>> list(order) == first[1:]
    True
    >>> order.set_epoch(1)
    >>> len(list(order)), list(order) == first
    (3, False)
    """

    def __init__(
        self,
        length: int,
        *,
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        shared: bool = False,
    ) -> None:
        self.length = length
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.shared = shared
        self._drawn: np.ndarray | None = None
        self.begin_at(epoch=0, batch=0)

    def begin_at(self, *, epoch: int, batch: int) -> None:
        """Choose an epoch, and with which of its batches the passes over it begin; other epochs are whole."""
        self.epoch = self._begun = epoch
        self._first = batch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next pass takes."""
        self.epoch = epoch

    def draw(self, positions: np.ndarray | None) -> None:
        """Draw the epochs that begin from now on from some positions only; None: from all.

        An epoch has as many batches as ever: it goes over the positions, each time in another order, until it is full.
        No batch has an item twice.

        Raises:
            UsageError: they are fewer than a batch has.

        >>> order = BatchOrder(6, batch_size=2, shuffle=True)
        >>> order.draw(np.array([1, 3, 7]))
        >>> batches = list(order)
        >>> len(batches), sorted(sum(batches, []))
        (3, [1, 1, 3, 3, 7, 7])
        """
        if positions is not None:
            few = f"batch_size: expected at most the {len(positions)} items that are drawn, got {self.batch_size}."
            check(len(positions) >= self.batch_size, few)
        self._drawn = positions

    def __len__(self) -> int:
        whole, rest = divmod(self.length, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for batch in range(self._first if self.epoch == self._begun else 0, len(self)):
            positions = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            own = positions[_own_part(len(positions)) if self.shared else slice(None)]
            yield _Drawn(own.tolist(), self.epoch)

    def _order(self) -> np.ndarray:
        positions = np.arange(self.length) if self._drawn is None else self._drawn
        if not self.shuffle:
            return np.resize(positions, self.length)
        random = generator("data.order", self.seed, self.epoch)
        order = random.permutation(positions)
        while len(order) < self.length:
            again, begun = random.permutation(positions), order[len(order) // self.batch_size * self.batch_size :]
            is_begun = np.isin(again, begun)  # what the batch that is not full has already comes last
            order = np.concatenate([order, again[~is_begun], again[is_begun]])
        return order[: self.length]


@accept_deprecated(num_workers="workers")
def loader(
    dataset: Dataset,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    num_workers: int | None = None,
    drop_last: bool = False,
    shared: bool = False,
    batches: int | None = None,
) -> Loader | StreamLoader:
    """Return the batches of a dataset; ``loader.batch_sampler`` is a `BatchOrder`, which knows epochs and positions.

    Args:
        dataset: where the items come from.
        batch_size: items in a batch, of all processes together; only the last may be smaller.
        shuffle: whether the order is drawn anew each epoch.
        seed: what the order depends on, together with the epoch.
        num_workers: processes that fetch ahead, at most one per core that this process may use; default: none for data
            in memory, else one per core but one, at most 8.
        drop_last: whether a smaller last batch is left out.
        shared: whether the processes of `torch.distributed` share each batch, as `local_share` says; else each gets
        all.
        batches: of a stream, how many an epoch has; default: one pass over it. It is read in its own order, by this
            process alone.

    Raises:
        UsageError: `drop_last` with a batch larger than the data, a shared batch of fewer items than processes, or a
            number out of range.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> [len(batch.ids) for batch in loader(from_arrays(np.ones((10, 2))), batch_size=4)]
    [4, 4, 2]
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(f"batch_size: expected a positive whole number, got {batch_size!r}.")
    if seed < 0:
        raise UsageError(f"seed: expected a number of at least 0, got {seed}.")
    if isinstance(dataset, Stream):
        return StreamLoader(dataset, batch_size, batches=batches, shared=shared)
    cores = _cores()
    if num_workers is not None and not 0 <= num_workers <= cores:
        raise UsageError(
            f"num_workers: expected a number from 0 to {cores}, one for each core that this process may use, "
            f"got {num_workers}."
        )
    if drop_last and batch_size > len(dataset):
        raise UsageError(
            f"batch_size: expected at most the {len(dataset)} items of {dataset.name!r}, got {batch_size}."
        )
    _, processes = distributed.world()
    if shared and batch_size < processes:
        raise UsageError(f"batch_size: expected an item for each of {processes} processes at least, got {batch_size}.")
    if num_workers is None:
        num_workers = 0 if dataset.in_memory else min(cores - 1, _MOST_WORKERS)
    order = BatchOrder(
        len(dataset), batch_size=batch_size, shuffle=shuffle, seed=seed, drop_last=drop_last, shared=shared
    )
    return Loader(
        _Handed(dataset) if num_workers else dataset,
        batch_sampler=order,
        collate_fn=_as_it_is,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        worker_init_fn=_leave_interrupts_to_the_parent,
        pin_memory=torch.cuda.is_available(),
    )


class Loader(DataLoader[Batch]):
    """A loader that raises what its workers hand over, and lets go of them when it is told to."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        for batch in super().__iter__():
            if isinstance(batch, UsageError):
                raise batch
            yield batch

    def close(self) -> None:
        """End the workers now: an error that is kept, or a session that goes on, keeps them alive otherwise."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


class StreamOrder(BatchOrder):
    """Where in a stream the epochs begin: each goes on where the one before ended."""

    def __init__(self, batch_size: int, *, batches: int, shared: bool) -> None:
        super().__init__(batches * batch_size, batch_size=batch_size, shared=shared)

    def skipped(self) -> int:
        """Return how many batches come before the next pass over an epoch."""
        return self.epoch * len(self) + (self._first if self.epoch == self._begun else 0)


class StreamLoader:
    """The batches of a stream: of an epoch of so many, which go on over all passes, or of one pass.

    >>> from contraport.data import from_stream
    >>> class Numbers(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return (torch.full((1,), float(number)) for number in range(5))
    >>> batches = loader(from_stream(Numbers()), 2, batches=3)
    >>> [batch.views[0].flatten().tolist() for batch in batches]
    [[0.0, 1.0], [2.0, 3.0], [4.0, 0.0]]
    """

    def __init__(self, stream: Stream, batch_size: int, *, batches: int | None, shared: bool) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self.batch_sampler = None if batches is None else StreamOrder(batch_size, batches=batches, shared=shared)
        self._shared = shared
        self._going: Iterator[Batch] | None = None
        self._read = 0

    def __len__(self) -> int:
        if self.batch_sampler is None:
            raise TypeError("nobody knows how many batches a stream has")
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        if self.batch_sampler is None:
            yield from self.stream.batches(self.batch_size)
            return
        skipped = self.batch_sampler.skipped()
        last = (self.batch_sampler.epoch + 1) * len(self)
        if self._going is None or self._read != skipped:
            self._going, self._read = self.stream.batches(self.batch_size, skipped=skipped, endless=True), skipped
        while self._read < last:
            batch = _in_all(self._going) if self._shared else next(self._going)
            self._read += 1
            yield self._part(batch) if self._shared else batch

    def close(self) -> None:
        """Let go of the stream."""
        self._going = None

    def _part(self, batch: Batch) -> Batch:
        own = _own_part(len(batch.ids))
        if own == slice(0, len(batch.ids)):
            return batch
        views = tuple(view[own] for view in batch.views)
        labels = None if batch.labels is None else batch.labels[own]
        keys = None if batch.keys is None else batch.keys[own]
        return batch._replace(views=views, labels=labels, keys=keys, ids=batch.ids[own])


def _in_all(batches: Iterator[Batch]) -> Batch:
    """Return the next batch of a stream that every process reads.

    Raises:
        UsageError: the stream of one process gives an error; in all, as the others would wait for that one for ever.
    """
    batch, failure = None, None
    try:
        batch = next(batches)
    except UsageError as error:
        failure = error
    failed = distributed.first_non_none(failure)
    if batch is None or failed is not None:
        assert failed is not None
        raise failed
    return batch


@dataclass(frozen=True)
class _Handed(torch.utils.data.Dataset[Batch]):
    """A dataset in a worker, whose errors are handed over as they are; torch would make a traceback of them."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, positions: list[int]) -> Batch | UsageError:
        try:
            return self.dataset.__getitems__(positions)
        except UsageError as error:
            return error


def _cores() -> int:
    """Return on how many cores this process may run, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _own_part(total: int) -> slice:
    rank, processes = distributed.world()
    return slice(rank * total // processes, (rank + 1) * total // processes)


def _as_it_is(batch: Any) -> Any:
    return batch


def _leave_interrupts_to_the_parent(worker: int) -> None:
    """Let Ctrl-C pass: it reaches all processes of a terminal, and the parent still wants the batches of its step."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
