"""The way from a dataset to batches: an order that depends only on the seed and the epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from contraport.data.dataset import Batch, Dataset
from contraport.errors import check

_MOST_WORKERS = 8


class EpochSampler(Sampler[int]):
    """The positions of a dataset in an order that depends on nothing but the seed and the epoch.

    >>> sampler = EpochSampler(5, shuffle=True, seed=0)
    >>> first = list(sampler)
    >>> sampler.set_epoch(1)
    >>> first == list(sampler), sorted(first)
    (False, [0, 1, 2, 3, 4])
    """

    def __init__(self, length: int, *, shuffle: bool, seed: int) -> None:
        self.length = length
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next pass takes."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        if not self.shuffle:
            return iter(range(self.length))
        order: list[int] = np.random.default_rng([self.seed, self.epoch]).permutation(self.length).tolist()
        return iter(order)


def loader(
    dataset: Dataset,
    batch_size: int,
    *,
    shuffle: bool = False,
    seed: int = 0,
    workers: int | None = None,
    drop_last: bool = False,
) -> DataLoader[Batch]:
    """Return the batches of a dataset; ``loader.sampler.set_epoch(epoch)`` reshuffles.

    Args:
        dataset: where the items come from.
        batch_size: items in a batch; only the last may be smaller.
        shuffle: whether the order is drawn anew each epoch.
        seed: what the order depends on, together with the epoch.
        workers: processes that fetch ahead; default: none for data in memory, else one per core but one, at most 8.
        drop_last: whether a smaller last batch is left out.

    Raises:
        UsageError: `drop_last` with a batch larger than the data, or a number out of range.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> [len(batch.ids) for batch in loader(from_arrays(np.ones((10, 2))), batch_size=4)]
    [4, 4, 2]
    """
    good = isinstance(batch_size, int) and batch_size > 0
    check(good, f"batch_size: expected a positive whole number, got {batch_size!r}.")
    check(seed >= 0, f"seed: expected a number of at least 0, got {seed}.")
    check(workers is None or workers >= 0, f"workers: expected a number of at least 0, got {workers}.")
    check(
        not drop_last or batch_size <= len(dataset),
        f"batch_size: expected at most the {len(dataset)} items of {dataset.name!r}, got {batch_size}.",
    )
    if workers is None:
        workers = 0 if dataset.in_memory else min((os.cpu_count() or 1) - 1, _MOST_WORKERS)
    return DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=EpochSampler(len(dataset), shuffle=shuffle, seed=seed),
        collate_fn=_as_it_is,
        num_workers=workers,
        persistent_workers=workers > 0,
        drop_last=drop_last,
        pin_memory=torch.cuda.is_available(),
    )


def _as_it_is(batch: Any) -> Any:
    return batch
