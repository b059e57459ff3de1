"""Batches of a dataset or stream in a reproducible order.

The order depends only on the seed and the epoch. Under `torch.distributed` the processes may share each batch: each
holds a contiguous part, see `local_batch_offset`.
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
from contraport.errors import UsageError, check, check_integer
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes
from contraport.seeding import GENERATOR_LOCK, numpy_generator


@accept_deprecated_keywords(total="global_batch_size")
@keep_deprecated_attributes(total="global_batch_size")
@dataclass(frozen=True)
class LocalBatchOffset:
    """Offset of this process's items in a global batch, and the size of that batch.

    Attributes:
        start: position in the global batch of the first item that the process holds.
        global_batch_size: number of items in the global batch.

    Raises:
        UsageError: the start is outside the batch.
    """

    start: int
    global_batch_size: int

    def __post_init__(self) -> None:
        message = f"start: must be at least 0 and less than global_batch_size, got {self}."
        check(0 <= self.start < self.global_batch_size, message)


def local_batch_offset(global_batch_size: int) -> LocalBatchOffset:
    """Return the offset of this process's part of a global batch.

    The parts follow each other in the order of the ranks, and their sizes differ by at most one item.

    >>> local_batch_offset(256)
    LocalBatchOffset(start=0, global_batch_size=256)
    """
    return LocalBatchOffset(_local_slice(global_batch_size).start, global_batch_size)


def _local_slice(global_batch_size: int) -> slice:
    """Return the slice of a global batch that this process holds."""
    rank, processes = distributed.current_processes()
    return slice(rank * global_batch_size // processes, (rank + 1) * global_batch_size // processes)


class _PositionsWithEpoch(list[int]):
    """List of item positions with the epoch that seeds their random transforms."""

    def __init__(self, positions: list[int], epoch: int) -> None:
        super().__init__(positions)
        self.epoch = epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return _PositionsWithEpoch, (list(self), self.epoch)


@accept_deprecated_keywords(shared="split_over_processes")
@keep_deprecated_attributes(shared="split_over_processes", fill_epochs_from="fill_epochs_by_repeating")
class BatchOrder(Sampler[list[int]]):
    """Batch sampler whose order depends only on the seed and the epoch.

    With ``split_over_processes=True`` it yields only this process's part of each batch.

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
        split_over_processes: bool = False,
    ) -> None:
        self.length = length
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.split_over_processes = split_over_processes
        self._pool: np.ndarray | None = None
        self._companions: np.ndarray | None = None
        self.begin_at(epoch=0, batch=0)

    def begin_at(self, *, epoch: int, batch: int) -> None:
        """Start one epoch at a given batch; other epochs start at their first batch."""
        self.epoch = self._resumed_epoch = epoch
        self._resumed_batch = batch

    @property
    def first_batch_index(self) -> int:
        """Index of the first batch in the next iteration, nonzero when resuming."""
        return self._resumed_batch if self.epoch == self._resumed_epoch else 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for the next iteration over the batches."""
        self.epoch = epoch

    def fill_epochs_by_repeating(self, positions: np.ndarray | None) -> None:
        """Fill future epochs with the items at `positions`, repeated to the usual length.

        None: with all items. An epoch repeats the positions, each time in another order, until it has as many batches
        as before. No batch contains an item twice.

        Raises:
            UsageError: there are fewer positions than the batch size.

        >>> order = BatchOrder(6, batch_size=2, shuffle=True)
        >>> order.fill_epochs_by_repeating(np.array([1, 3, 7]))
        >>> batches = list(order)
        >>> len(batches), sorted(sum(batches, []))
        (3, [1, 1, 3, 3, 7, 7])
        """
        if positions is not None:
            message = f"batch_size: must be at most {len(positions)}, the items left to draw, got {self.batch_size}."
            check(len(positions) >= self.batch_size, message, "too_large")
        self._pool = positions

    def insert_companions(self, companions_by_item: np.ndarray) -> None:
        """Insert companions, such as hard negatives, after each item in future batches.

        `companions_by_item` holds their positions, int64 ``(length, m)``. A batch of b items then has b (1 + m) rows.

        >>> order = BatchOrder(4, batch_size=2)
        >>> order.insert_companions(np.array([[1], [2], [3], [0]]))
        >>> list(order)
        [[0, 1, 1, 2], [2, 3, 3, 0]]
        """
        self._companions = companions_by_item

    def __len__(self) -> int:
        full, rest = divmod(self.length, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        pool = np.arange(self.length) if self._pool is None else self._pool
        if self.shuffle:
            random = numpy_generator("data.order", self.seed, self.epoch)
            order = random.permutation(pool)
            while len(order) < self.length:
                again, partial = random.permutation(pool), order[len(order) // self.batch_size * self.batch_size :]
                repeated = np.isin(again, partial)  # items of the batch that is not yet full come last
                order = np.concatenate([order, again[~repeated], again[repeated]])
        else:
            order = np.resize(pool, self.length)
        for batch in range(self.first_batch_index, len(self)):
            positions = order[batch * self.batch_size : (batch + 1) * self.batch_size]
            local = positions[_local_slice(len(positions))] if self.split_over_processes else positions
            if self._companions is not None:
                local = np.column_stack([local, self._companions[local]]).ravel()
            yield _PositionsWithEpoch(local.tolist(), self.epoch)


@accept_deprecated_keywords(workers="num_workers", shared="split_over_processes", batches="batches_per_epoch")
def build_loader(
    dataset: Dataset,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    num_workers: int | None = None,
    drop_last: bool = False,
    split_over_processes: bool = False,
    batches_per_epoch: int | None = None,
) -> ClosableDataLoader | StreamLoader:
    """Build a loader whose ``batch_sampler`` is a resumable `BatchOrder`.

    Args:
        dataset: source of the items.
        batch_size: items per batch over all processes; only the last batch may be smaller.
        shuffle: whether each epoch has a new random order.
        seed: seed of the order, together with the epoch.
        num_workers: number of worker processes, at most one per core of this process; default: 0 for data in memory,
            else the number of cores minus one, at most 8.
        drop_last: whether to drop a smaller last batch.
        split_over_processes: whether each process of `torch.distributed` gets a part of each batch, see
            `local_batch_offset`; otherwise each process gets all items.
        batches_per_epoch: of a stream; default: one pass. A stream is read in its own order by this process.

    Raises:
        UsageError: a number is out of range, `drop_last` with a batch larger than the data, or a split batch with
            fewer items than processes.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> [len(batch.ids) for batch in build_loader(from_arrays(np.ones((10, 2))), batch_size=4)]
    [4, 4, 2]
    """
    check_integer("batch_size", batch_size)
    check_integer("seed", seed, 0)
    if isinstance(dataset, Stream):
        return StreamLoader(
            dataset, batch_size, batches_per_epoch=batches_per_epoch, split_over_processes=split_over_processes
        )
    items, (_, processes) = len(dataset), distributed.current_processes()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    message = f"num_workers: must be from 0 to {cores}, the cores available to this process, got {num_workers}."
    check(num_workers is None or 0 <= num_workers <= cores, message)
    if drop_last:
        message = f"batch_size: must be at most {items}, the items of {dataset.name!r}, got {batch_size}."
        check(batch_size <= items, message, "too_large")
    if split_over_processes:
        message = f"batch_size: must be at least {processes}, one item per process, got {batch_size}."
        check(batch_size >= processes, message, "too_small")
    if num_workers is None:
        num_workers = 0 if dataset.is_in_memory else min(cores - 1, 8)
    order = BatchOrder(
        items,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        split_over_processes=split_over_processes,
    )
    return ClosableDataLoader(
        _UsageErrorsAsBatches(dataset) if num_workers else dataset,
        batch_sampler=order,
        collate_fn=_return_batch_unchanged,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        worker_init_fn=_ignore_interrupts,
        pin_memory=torch.cuda.is_available(),
    )


class ClosableDataLoader(DataLoader[Batch]):
    """PyTorch DataLoader that can be closed and raises the workers' original `UsageError`."""

    def __iter__(self) -> Iterator[Batch]:  # type: ignore[override]
        with GENERATOR_LOCK:  # torch draws a seed for the workers from its global generator
            batches = super().__iter__()
        for batch in batches:
            if isinstance(batch, UsageError):
                raise batch
            yield batch

    def close(self) -> None:
        """Stop the worker processes, even if a traceback still holds the iterator."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()


@dataclass(frozen=True)
class _UsageErrorsAsBatches(torch.utils.data.Dataset[Batch]):
    """Dataset that returns usage errors as batches, because torch wraps raised errors."""

    dataset: Dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, positions: list[int]) -> Batch | UsageError:
        try:
            return self.dataset.__getitems__(positions)
        except UsageError as error:
            return error


def _return_batch_unchanged(batch: Any) -> Any:
    """Return a batch unchanged, because the dataset has already collated it."""
    return batch


def _ignore_interrupts(worker: int) -> None:
    """Ignore Ctrl-C in a worker, because the parent process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class StreamLoader:
    """Loader of the batches of a stream.

    Its epochs have a fixed number of batches, or it makes a single pass. Each epoch continues at the batch where the
    previous one ended.

    >>> from contraport.data import from_stream
    >>> class Numbers(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return (torch.full((1,), float(number)) for number in range(5))
    >>> batches = build_loader(from_stream(Numbers()), 2, batches_per_epoch=3)
    >>> [batch.views[0].flatten().tolist() for batch in batches]
    [[0.0, 1.0], [2.0, 3.0], [4.0, 0.0]]
    """

    def __init__(
        self, stream: Stream, batch_size: int, *, batches_per_epoch: int | None, split_over_processes: bool
    ) -> None:
        self.stream = stream
        self.batch_size = batch_size
        self.batch_sampler: BatchOrder | None = None
        if batches_per_epoch is not None:
            length = batches_per_epoch * batch_size
            self.batch_sampler = BatchOrder(length, batch_size=batch_size, split_over_processes=split_over_processes)
        self._split_over_processes = split_over_processes
        self._iterator: Iterator[Batch] | None = None
        self._read = 0

    def __len__(self) -> int:
        if self.batch_sampler is None:
            raise TypeError("the number of batches of a stream is unknown")
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Batch]:
        if self.batch_sampler is None:
            yield from self.stream.batches(self.batch_size)
            return
        skipped = self.batch_sampler.epoch * len(self) + self.batch_sampler.first_batch_index
        last = (self.batch_sampler.epoch + 1) * len(self)
        if self._iterator is None or self._read != skipped:  # else the iterator is already at this place
            self._iterator = self.stream.batches(self.batch_size, skipped_batches=skipped, endless=True)
            self._read = skipped
        while self._read < last:
            batch, failure = None, None
            try:
                batch = next(self._iterator)
            except UsageError as error:
                failure = error
            if self._split_over_processes:
                # All processes raise the error of one: otherwise the others would wait for it forever.
                failure = distributed.first_non_none_across_ranks(failure)
            if failure is not None:
                raise failure
            assert batch is not None
            self._read += 1
            if self._split_over_processes:
                part = _local_slice(len(batch.ids))
                batch = batch._replace(
                    views=tuple(view[part] for view in batch.views),
                    labels=None if batch.labels is None else batch.labels[part],
                    keys=None if batch.keys is None else batch.keys[part],
                    ids=batch.ids[part],
                )
            yield batch

    def close(self) -> None:
        """Release the iterator over the stream."""
        self._iterator = None
