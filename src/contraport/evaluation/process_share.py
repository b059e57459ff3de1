"""The part of a job that one of several processes does, when a launcher such as torchrun started them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from contraport.data import Dataset
from contraport.data.stores import StoreWrapper
from contraport.data.streams import Stream
from contraport.errors import check
from contraport.features import shard_path

_ENVIRONMENT = (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))


class ProcessShard(NamedTuple):
    """Which of how many processes this one is; each takes a run of neighbouring items."""

    number: int
    of: int
    local: int
    """Which of the processes of its machine it is, and so which of the machine's devices it takes."""

    def path(self, path: Path) -> Path:
        """Return the file that this process writes: the one asked for, or its numbered shard.

        >>> str(ProcessShard(0, 1, 0).path(Path("a.npz"))), str(ProcessShard(1, 2, 1).path(Path("a.npz")))
        ('a.npz', 'a.00001-of-00002.npz')
        """
        if self.of == 1:
            return path
        return shard_path(path, self.number, self.of)

    def part(self, datasets: Sequence[Dataset]) -> list[Dataset]:
        """Return the items of this process, dataset by dataset.

        Put one after the other, the shards are the datasets one after the other.

        Raises:
            UsageError: there are fewer items than processes.
        """
        if any(isinstance(dataset, Stream) for dataset in datasets):
            check(self.of == 1, f"data: a stream cannot be shared among {self.of} processes.")
            return list(datasets)
        total = sum(len(dataset) for dataset in datasets)
        check(total >= self.of, f"data: {total} items cannot be shared among {self.of} processes.")
        start, stop = total * self.number // self.of, total * (self.number + 1) // self.of
        parts, passed = [], 0
        for dataset in datasets:
            first, last = max(start - passed, 0), min(stop - passed, len(dataset))
            if first < last:
                parts.append(_between(dataset, first, last))
            passed += len(dataset)
        return parts


def current_process() -> ProcessShard:
    """Return the share of this process, which the launcher tells in RANK, WORLD_SIZE and LOCAL_RANK."""
    return ProcessShard(*(int(os.environ.get(name, default)) for name, default in _ENVIRONMENT))


@dataclass(frozen=True)
class _Neighbours(StoreWrapper):
    """Some neighbouring items of another store."""

    first: int
    last: int

    @property
    def digests(self) -> Tensor | None:
        digests = self.store.digests
        return None if digests is None else digests[self.first : self.last]

    def __len__(self) -> int:
        return self.last - self.first

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        return self.store.fetch(positions + self.first)


def _between(dataset: Dataset, first: int, last: int) -> Dataset:
    if (first, last) == (0, len(dataset)):
        return dataset
    part = _Neighbours(dataset.store, first, last)
    return dataset.at(slice(first, last), part, split=dataset.split, held_out=None)
