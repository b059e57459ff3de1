"""Stores: where the views of items lie, in memory, in files or in archives, and what is made of them as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Store(Protocol):
    """Where the views lie: in memory, in files, in archives, or behind a resize."""

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""

    @property
    def in_memory(self) -> bool:
        """Whether a fetch only copies memory."""

    @property
    def digests(self) -> Tensor | None:
        """Digests of the content of each item in each view, int64 ``(n, views)``; None where it is made anew."""

    def __len__(self) -> int: ...

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""


@dataclass(frozen=True)
class StoreWrapper(ABC):
    """A store over another one, in whose place it stands; what it does not change is the other's.

    Attributes:
        store: the other one.
    """

    store: Store

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return self.store.shapes

    @property
    def in_memory(self) -> bool:
        """Whether a fetch only copies memory."""
        return self.store.in_memory

    @property
    def digests(self) -> Tensor | None:
        """Digests of the content of each item in each view: that of the other store, whatever is made of it."""
        return self.store.digests

    def __len__(self) -> int:
        return len(self.store)

    @abstractmethod
    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""


@dataclass(frozen=True)
class SubsetStore(StoreWrapper):
    """Some of the items of another store, at the given positions."""

    positions: Tensor

    @property
    def digests(self) -> Tensor | None:
        digests = self.store.digests
        return None if digests is None else digests[self.positions]

    def __len__(self) -> int:
        return len(self.positions)

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        return self.store.fetch(self.positions[positions])


@dataclass(frozen=True)
class ViewSubsetStore(StoreWrapper):
    """Some of the views of another store, by their numbers."""

    views: tuple[int, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(self.store.shapes[view] for view in self.views)

    @property
    def digests(self) -> Tensor | None:
        digests = self.store.digests
        return None if digests is None else digests[:, list(self.views)]

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        fetched = self.store.fetch(positions)
        return tuple(fetched[view] for view in self.views)


@dataclass(frozen=True)
class MultiViewStore:
    """The views of several stores that hold the same items."""

    stores: tuple[Store, ...]

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return tuple(shape for store in self.stores for shape in store.shapes)

    @property
    def in_memory(self) -> bool:
        """Whether a fetch only copies memory."""
        return all(store.in_memory for store in self.stores)

    @property
    def digests(self) -> Tensor | None:
        """Digests of the content of each item in each view; None where one of the stores has none."""
        columns = [digests for store in self.stores if (digests := store.digests) is not None]
        return torch.cat(columns, dim=1) if len(columns) == len(self.stores) else None

    def __len__(self) -> int:
        return len(self.stores[0])

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""
        return tuple(view for store in self.stores for view in store.fetch(positions))


def join_stores(stores: Sequence[Store]) -> Store:
    """Return the views of some stores as one."""
    return stores[0] if len(stores) == 1 else MultiViewStore(tuple(stores))
