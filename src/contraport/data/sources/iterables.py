"""Any iterable of items as a stream: torch's `IterableDataset`, a webdataset pipeline, Hugging Face's streams."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from contraport._utils.text_tensors import concatenate_batches, item_shape
from contraport.data.arrays import ArrayStore
from contraport.data.dataset import Dataset
from contraport.data.sources.item_parser import has_images, item_view_names, parse_item
from contraport.data.streams import HEAD, Stream, StreamError, StreamItem
from contraport.errors import UsageError, check, one_line_reason


def from_stream(
    source: Iterable[Any],
    *,
    name: str | None = None,
    image_size: int | None = None,
    flips: bool = False,
    labels: bool = True,
) -> Stream:
    """Return a stream of the items that an iterable gives.

    An item is what `from_torch` takes: a view, a tuple of views and a label last, or a dict, as streams of Hugging
    Face and pipelines of webdataset give, whose ``__key__`` is the key. Labels that are no whole numbers are left out,
    as nobody knows what others are to come.

    Args:
        source: can be iterated over again and again, as a run that goes on does.
        name: what messages call it; default: the name of its class.
        image_size: side of the square that images become, in pixels; default: their own size.
        flips: whether a horizontal flip keeps the meaning of an image.
        labels: whether labels are kept.

    Raises:
        UsageError: it can be iterated over once only, gives nothing, or an item is no view.

    >>> class Numbers(torch.utils.data.IterableDataset):
    ...     def __iter__(self):
    ...         return ((torch.full((3,), float(number)), number % 2) for number in range(5))
    >>> stream = from_stream(Numbers())
    >>> stream.shapes, [batch.labels.tolist() for batch in stream.batches(2)]
    (((3,),), [[0, 1], [0, 1], [0]])
    """
    name = type(source).__name__ if name is None else name
    check(
        not hasattr(source, "__next__"),
        f"data: {name} can be iterated over once only, and a run that goes on begins anew; expected an iterable such "
        "as an IterableDataset, whose __iter__ begins each time.",
    )
    read = _Reading(name, image_size, labels)
    try:
        given = list(itertools.islice(source, HEAD))
    except UsageError:
        raise
    except Exception as error:  # a stranger's code
        raise StreamError(f"data: {name} broke at its beginning: {one_line_reason(error)}") from error
    check(len(given) > 0, f"data: {name} gives no item.")
    items = [read(item, position) for position, item in enumerate(given)]
    shapes = [tuple(map(item_shape, item.views)) for item in items]
    odd = next((position for position, shape in enumerate(shapes) if shape != shapes[0]), None)
    check(
        odd is None,
        f"data: {name}: item {odd}: expected views of shapes {shapes[0]} as those of item 0, got {shapes[odd or 0]}; "
        "image_size makes images equal.",
    )
    views = tuple(concatenate_batches(parts) for parts in zip(*(item.views for item in items), strict=True))
    known = [item.label for item in items if item.label is not None]
    labelled = len(known) == len(items) and min(known) >= 0
    head = Dataset(
        ArrayStore(views),
        name=name,
        split="train",
        labels=torch.tensor(known) if labelled else None,
        class_names=tuple(map(str, range(max(known) + 1))) if labelled else None,
        flips=flips or has_images(given[0]),
        view_names=item_view_names(given[0]),
    )
    return Stream(source, read, head)


@dataclass(frozen=True)
class _Reading:
    """Makes an item of what a source gives."""

    name: str
    image_size: int | None
    labels: bool

    def __call__(self, item: Any, position: int) -> StreamItem:
        views, label, key = parse_item(item, f"data: {self.name}: item {position}", self.image_size)
        if isinstance(label, str):
            label = int(label) if label.strip().isdecimal() else None
        return StreamItem(views, label if self.labels else None, key)
