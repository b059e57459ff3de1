"""Streams, datasets of unknown length that are read in order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from contraport._utils.text_bytes import concatenate_batches, item_shape
from contraport.data.dataset import Batch, Dataset
from contraport.data.stores import Shape
from contraport.errors import UsageError, check, one_line_reason


class ParsedItem(NamedTuple):
    """Views, label and key of one item of a torch dataset or stream.

    Attributes:
        views_as_batches_of_one: views of the item as batches of one, ``(1, *shape)`` each.
        label: class of the item by number or name, or None.
        key: name of the item in its source, or None.
        view_names: names of the views, if the item is a dict of several views; otherwise empty.
    """

    views_as_batches_of_one: tuple[Tensor, ...]
    label: int | str | None
    key: str | None
    view_names: tuple[str, ...] = ()


class StreamReadError(UsageError):
    """Error while reading a stream, after which a checkpoint can still be saved."""


def iterate_source(source: Iterable[Any], name: str, pass_number_in_errors: int = 0) -> Iterator[Any]:
    """Yield the items of an iterable, and raise its errors as `StreamReadError`."""
    count = 0
    try:
        for item in source:
            yield item
            count += 1
    except UsageError:
        raise
    except Exception as error:  # user code may raise anything
        message = f"data: {name} failed at item {count} of pass {pass_number_in_errors}: {one_line_reason(error)}"
        raise StreamReadError(message, kind="stream") from error


class Stream(Dataset):
    """Dataset that reads the items of an iterable in order.

    Only the first items, `head`, are accessible by position. Each iteration over the source is a pass. Before a pass
    ``source.set_epoch(number)`` is called if it exists. A resumed run skips the items it has already read, so a pass of
    one number must always yield the same items.

    Args:
        source: an iterable that can be iterated repeatedly.
        read: parses an item of the source, given its position.
        head: the first items.
    """

    def __init__(self, source: Iterable[Any], read: Callable[[Any, int], ParsedItem], head: Dataset) -> None:
        super().__init__(**head.get_field_values())
        self.source = source
        self.read = read
        self._head = head

    def select_views(self, views: Sequence[int], argument: str = "views") -> Stream:
        """Select views of the stream, whose items are still read in full.

        Raises:
            UsageError: there is no such view.
        """

        def read(item: Any, position: int) -> ParsedItem:
            whole = self._parse_item(item, position)
            return whole._replace(views_as_batches_of_one=tuple(whole.views_as_batches_of_one[view] for view in views))

        return Stream(self.source, read, self._head.select_views(views, argument))

    def items(self, pass_number: int = 0) -> Iterator[ParsedItem]:
        """Yield the items of one pass over the iterable.

        Raises:
            StreamReadError: the source raises an error.
            UsageError: an item differs from the others in shape, or the pass is empty.
        """
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(pass_number)
        position = -1
        for position, item in enumerate(iterate_source(self.source, self.name, pass_number)):
            yield self._parse_item(item, position)
        message = f"data: {self.name} yielded no item in pass {pass_number}; each iteration must start anew."
        check(position >= 0, message, "empty")

    def batches(self, batch_size: int, *, skipped_batches: int = 0, endless: bool = False) -> Iterator[Batch]:
        """Yield batches of successive items, from one pass or repeated passes.

        Args:
            batch_size: items in a batch; the last one of a single pass may be smaller.
            skipped_batches: number of batches to skip.
            endless: whether further passes follow.
        """
        passes = itertools.count() if endless else range(1)
        items = enumerate(item for number in passes for item in self.items(number))
        rest = itertools.islice(items, skipped_batches * batch_size, None)
        while chosen := list(itertools.islice(rest, batch_size)):
            labels, keys = [item.label for _, item in chosen], [item.key for _, item in chosen]
            labelled = self.labels is not None
            missing = next((number for number, item in chosen if labelled and item.label is None), None)
            check(missing is None, f"data: {self.name}: item {missing} has no label, others have.", "missing_label")
            views = zip(*(item.views_as_batches_of_one for _, item in chosen), strict=True)
            yield Batch(
                views=tuple(concatenate_batches(parts) for parts in views),
                labels=torch.tensor(labels) if labelled else None,
                domains=None,
                ids=torch.tensor([number for number, _ in chosen]),
                keys=None if None in keys else tuple(map(str, keys)),
            )

    def replace_fields(self, **changes: Any) -> NoReturn:
        """Raise `UsageError`, because the items of a stream cannot be changed."""
        message = f"data: {self.name} is a stream; pass image_size and labels to from_stream instead of changing it."
        raise UsageError(message, kind="stream")

    def _parse_item(self, item: Any, position: int) -> ParsedItem:
        """Parse an item, and check the shapes of its views."""
        parsed = self.read(item, position)
        check_item_view_shapes(f"data: {self.name}: item {position}", parsed.views_as_batches_of_one, self.shapes)
        return parsed


def check_item_view_shapes(
    error_prefix: str, views_as_batches_of_one: Sequence[Tensor], expected_shapes: Sequence[Shape]
) -> None:
    """Raise `UsageError` unless an item's views have the expected shapes."""
    shapes = tuple(map(item_shape, views_as_batches_of_one))
    message = f"{error_prefix}: must have views of shapes {expected_shapes} like item 0, got {shapes}"
    check(shapes == expected_shapes, f"{message}; image_size resizes images.", "shape")


def check_no_stream(dataset: Dataset) -> None:
    """Raise `UsageError` if a dataset is a stream."""
    message = f"data: must be a dataset whose items are all available, got the stream {dataset.name}."
    check(not isinstance(dataset, Stream), message, "stream")
