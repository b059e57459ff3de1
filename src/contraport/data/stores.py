"""Stores of item views in memory or in files, and store wrappers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from contraport._utils.text_bytes import TEXT_SHAPE, encode_truncated_utf8, item_shape
from contraport.data.duplicate_groups import digest_byte_strings, digest_encoded_items, digest_rows

if TYPE_CHECKING:
    from contraport.data.splits import PositionArray

MAPPED_BLOCK_BYTES = 2**24
"""Number of bytes of a memory-mapped array that are read at a time."""

Shape = tuple[int, ...]
"""Shape of one item of a view, without the batch dimension."""


class Store(ABC):
    """Base class of stores, which fetch the views of items in batches."""

    @property
    @abstractmethod
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of one item of each view."""

    @property
    def is_in_memory(self) -> bool:
        """True if loading needs no workers because all items are in memory."""
        return False

    @cached_property
    def view_content_digests(self) -> Tensor | None:
        """Content digest of each item and view, int64 ``(n, views)``.

        None if items differ at each fetch. The first access reads all items.
        """
        blocks = torch.arange(len(self)).split(64)  # to bound memory
        return torch.cat([torch.stack([*map(digest_rows, self.fetch_views(block))], dim=1) for block in blocks])

    def subset(self, positions: PositionArray) -> Store:
        """Return a store of the items at given positions."""
        return SubsetStore(self, torch.from_numpy(positions))

    def select_views(self, views: tuple[int, ...]) -> Store:
        """Return a store of some views, chosen by index."""
        return self if views == tuple(range(len(self.shapes))) else ViewSubsetStore(self, views)

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the items at given positions, as one tensor per view."""


@dataclass(frozen=True)
class ArrayStore(Store):
    """Store of views as tensors in memory."""

    views: tuple[Tensor, ...]
    is_in_memory = True

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(map(item_shape, self.views))

    @cached_property
    def view_content_digests(self) -> Tensor:
        return torch.stack([digest_rows(view) for view in self.views], dim=1)

    def subset(self, positions: PositionArray) -> ArrayStore:
        return ArrayStore(self.fetch_views(torch.from_numpy(positions)))

    def __len__(self) -> int:
        return len(self.views[0])

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return tuple([view[positions] for view in self.views])


@dataclass(frozen=True)
class MemmapRowStore(Store):
    """Store of one view in a memory-mapped array, whose rows become tensors when fetched.

    Attributes:
        array: the array, ``(n, ...)`` in C order, of any type of numbers and at any place in its file.
        convert: converts rows of the array to the tensor of a view.
        absent: mask of the items that lack the view, whose rows are replaced by zeros, ``(n,)``; None: no item.
    """

    array: np.ndarray
    convert: Callable[[np.ndarray], Tensor]
    absent: np.ndarray | None = None
    is_in_memory = True

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        return (item_shape(self.convert(self.array[:1])),)

    @cached_property
    def view_content_digests(self) -> Tensor:
        return torch.cat([digest_rows(view) for _, view in self.iterate_raw_and_converted_blocks()])[:, None]

    def iterate_raw_and_converted_blocks(self) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield each block of rows as the stored array and as a tensor."""
        for block in torch.arange(len(self)).split(max(1, MAPPED_BLOCK_BYTES * len(self) // self.array.nbytes)):
            rows = self._take_rows(block)
            yield rows, self.convert(rows)

    def _take_rows(self, positions: Tensor) -> np.ndarray:
        """Copy the rows at given positions, with zeros for absent ones."""
        # As bytes, since numbers may begin at any byte of the file: NumPy would first copy the whole array.
        as_bytes = self.array.reshape(len(self), -1).view(np.uint8)
        rows = as_bytes.take(positions.numpy(), axis=0).view(self.array.dtype)
        if self.absent is not None:
            rows[self.absent[positions.numpy()]] = 0
        return rows.reshape(-1, *self.array.shape[1:])

    def __len__(self) -> int:
        return len(self.array)

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return (self.convert(self._take_rows(positions)),)


@dataclass(frozen=True)
class PackedTextStore(Store):
    """Store of one view of texts, in memory and without padding.

    Attributes:
        utf8_bytes: UTF-8 bytes of all texts, one text after the other.
        text_bounds: start of each text in `utf8_bytes`, and the end of the last one, int64 ``(n + 1,)``.
    """

    utf8_bytes: Tensor
    text_bounds: Tensor
    shapes = (TEXT_SHAPE,)
    is_in_memory = True

    @classmethod
    def from_texts(cls, texts: Sequence[str], argument: str = "texts") -> Self:
        """Pack texts into a store.

        Raises:
            UsageError: a text is not valid Unicode or contains a null character.

        >>> store = PackedTextStore.from_texts(["a", "bc", ""])
        >>> len(store), store.shapes, store.fetch_views(torch.tensor([1, 0]))[0].tolist()
        (3, ((),), [[98, 99], [97, 0]])
        """
        encoded = encode_truncated_utf8(texts, argument)
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        content = bytearray(b"".join(encoded) or b"\0")  # torch refuses an empty buffer
        return cls(torch.frombuffer(content, dtype=torch.uint8), torch.from_numpy(ends))

    @cached_property
    def view_content_digests(self) -> Tensor:
        content, ends = self.utf8_bytes.numpy().tobytes(), self.text_bounds.tolist()
        return digest_byte_strings(content[start:end] for start, end in pairwise(ends))[:, None]

    def __len__(self) -> int:
        return len(self.text_bounds) - 1

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the texts at given positions, padded to the longest text."""
        starts, ends = self.text_bounds[positions], self.text_bounds[positions + 1]
        longest = max(int((ends - starts).max()), 1) if len(positions) else 1
        places = starts[:, None] + torch.arange(longest)
        inside = places < ends[:, None]
        return (torch.where(inside, self.utf8_bytes[torch.where(inside, places, 0)], 0),)


class ItemFilesOrBytes(Protocol):
    """Protocol of encoded items, such as JPEG images, as files or bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, position: int) -> Path | bytes:
        """Return the path of an item's file, or the encoded bytes."""

    def subset(self, positions: PositionArray) -> Self:
        """Return the items at given positions."""

    def describe_item_location(self, position: int) -> str:
        """Return the name of an item for error messages."""


@dataclass(frozen=True)
class DecodingStore(Store):
    """Store of one view that decodes items at each fetch.

    Attributes:
        encoded: the undecoded items.
        shape: shape of a decoded item.
        decode: decodes the items at given positions to a view of this shape, ``(b, *shape)``.
    """

    encoded: ItemFilesOrBytes
    shape: Shape
    decode: Callable[[ItemFilesOrBytes, Sequence[int], Shape], Tensor]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (self.shape,)

    @cached_property
    def view_content_digests(self) -> Tensor:
        return digest_encoded_items(self.encoded, range(len(self)))[:, None]

    def subset(self, positions: PositionArray) -> Self:
        return replace(self, encoded=self.encoded.subset(positions))

    def __len__(self) -> int:
        return len(self.encoded)

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return (self.decode(self.encoded, positions.tolist(), self.shape),)


@dataclass(frozen=True)
class StoreWrapper(Store, ABC):
    """Base class of stores that wrap another store and delegate to it by default.

    Attributes:
        store: the wrapped store.
    """

    store: Store

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.store.shapes

    @property
    def is_in_memory(self) -> bool:
        return self.store.is_in_memory

    @property
    def view_content_digests(self) -> Tensor | None:
        """Content digests of the wrapped store's items, without the changes of this wrapper."""
        return self.store.view_content_digests

    def __len__(self) -> int:
        return len(self.store)


@dataclass(frozen=True)
class TransformedStore(StoreWrapper):
    """Store that changes the views of another store at each fetch.

    Attributes:
        transform: function of the fetched views and of the positions of their items, int64 ``(b,)``.
        new_shapes: shape of one item of each changed view; None if the shapes do not change.
    """

    transform: Callable[[tuple[Tensor, ...], Tensor], tuple[Tensor, ...]]
    new_shapes: tuple[Shape, ...] | None = None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return self.new_shapes or self.store.shapes

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return self.transform(self.store.fetch_views(positions), positions)


@dataclass(frozen=True)
class SubsetStore(StoreWrapper):
    """Store of the items of another store at given positions."""

    positions: Tensor

    @property
    def view_content_digests(self) -> Tensor | None:
        digests = self.store.view_content_digests
        return None if digests is None else digests[self.positions]

    def select_views(self, views: tuple[int, ...]) -> Store:
        return SubsetStore(self.store.select_views(views), self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return self.store.fetch_views(self.positions[positions])


@dataclass(frozen=True)
class ReorderedColumnStore(StoreWrapper):
    """Store of one view, with its columns (features or channels) in another order."""

    column_order: tuple[int, ...]
    view_content_digests = Store.view_content_digests  # of the reordered items

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return tuple(view[:, list(self.column_order)] for view in self.store.fetch_views(positions))


@dataclass(frozen=True)
class ViewSubsetStore(StoreWrapper):
    """Store of some views of another store, chosen by index."""

    views: tuple[int, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(self.store.shapes[view] for view in self.views)

    @property
    def view_content_digests(self) -> Tensor | None:
        digests = self.store.view_content_digests
        return None if digests is None else digests[:, list(self.views)]

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        fetched = self.store.fetch_views(positions)
        return tuple(fetched[view] for view in self.views)


@dataclass(frozen=True)
class CombinedViewsStore(Store):
    """Store that combines the views of several stores of the same items."""

    stores: tuple[Store, ...]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(shape for store in self.stores for shape in store.shapes)

    @property
    def is_in_memory(self) -> bool:
        return all(store.is_in_memory for store in self.stores)

    @property
    def view_content_digests(self) -> Tensor | None:
        columns = [digests for store in self.stores if (digests := store.view_content_digests) is not None]
        return torch.cat(columns, dim=1) if len(columns) == len(self.stores) else None

    def subset(self, positions: PositionArray) -> CombinedViewsStore:
        return CombinedViewsStore(tuple(store.subset(positions) for store in self.stores))

    def select_views(self, views: tuple[int, ...]) -> Store:
        owners = [(store, view) for store in self.stores for view in range(len(store.shapes))]
        chosen = [owners[view] for view in views]
        return combine_views(
            [store if len(store.shapes) == 1 else store.select_views((view,)) for store, view in chosen]
        )

    def __len__(self) -> int:
        return len(self.stores[0])

    def fetch_views(self, positions: Tensor) -> tuple[Tensor, ...]:
        return tuple(view for store in self.stores for view in store.fetch_views(positions))


def combine_views(stores: Sequence[Store]) -> Store:
    """Combine the views of several stores of the same items into one store."""
    return stores[0] if len(stores) == 1 else CombinedViewsStore(tuple(stores))
