"""Shard of the items that one process embeds when torchrun or a similar launcher starts several processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from contraport.data import Dataset
from contraport.data.streams import Stream
from contraport.errors import check
from contraport.features import shard_path

_ENVIRONMENT = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


class ProcessShard(NamedTuple):
    """Rank of this process and number of processes, which determine the contiguous range of items to embed."""

    rank: int
    total: int
    local: int
    """Rank within the machine, which selects the device."""

    def output_path(self, path: Path) -> Path:
        """Return the path of the file that this process writes: the given path, or that of its own shard.

        >>> str(ProcessShard(0, 1, 0).output_path(Path("a.npz"))), str(ProcessShard(1, 2, 1).output_path(Path("a.npz")))
        ('a.npz', 'a.00001-of-00002.npz')
        """
        return path if self.total == 1 else shard_path(path, self.rank, self.total)

    def select_items(self, datasets: Sequence[Dataset]) -> list[Dataset]:
        """Return the items that this process embeds, as parts of the datasets in order.

        Raises:
            UsageError: there are fewer items than processes, or a dataset is a stream.
        """
        if any(isinstance(dataset, Stream) for dataset in datasets):
            check(self.total == 1, f"data: a stream cannot be divided among {self.total} processes.", "stream")
            return list(datasets)
        items = sum(len(dataset) for dataset in datasets)
        check(
            items >= self.total, f"data: {items} items cannot be divided among {self.total} processes.", "too_few_items"
        )
        start, stop = items * self.rank // self.total, items * (self.rank + 1) // self.total
        parts, offset = [], 0
        for dataset in datasets:
            first, last = max(start - offset, 0), min(stop - offset, len(dataset))
            if first < last:
                parts.append(_slice(dataset, first, last))
            offset += len(dataset)
        return parts


def current_process_shard() -> ProcessShard:
    """Return the shard of this process, read from the environment variables RANK, WORLD_SIZE and LOCAL_RANK."""
    return ProcessShard(*(int(os.environ.get(name, default)) for name, default in _ENVIRONMENT))


def _slice(dataset: Dataset, first: int, last: int) -> Dataset:
    return dataset if (first, last) == (0, len(dataset)) else dataset.subset(torch.arange(first, last))
