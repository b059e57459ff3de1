"""Items that come one after the other, of which nobody knows how many there are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from contraport._utils.text_tensors import concatenate_batches, item_shape
from contraport.data.dataset import Batch, Dataset
from contraport.errors import UsageError, check, one_line_reason

HEAD = 1_000
"""So many items are read to know their shapes and statistics."""


class StreamItem(NamedTuple):
    """An item of a stream.

    Attributes:
        views: ``(1, *shape)`` each.
        label: its class, or None.
        key: what the stream calls it, or None.
    """

    views: tuple[Tensor, ...]
    label: int | None
    key: str | None


class StreamError(UsageError):
    """A stream gave an error where an item was due; what was done before can be kept."""


class Stream(Dataset):
    """The items that an iterable gives, in its order; as a `Dataset` it is the first of them.

    Each iteration over the source is a pass; before one, the source is told its number by ``set_epoch``, where it has
    that. A run that is stopped goes on at its place by passing over what came before, so a pass of one number has to
    give the same items again.

    Args:
        source: can be iterated over again and again.
        read: makes an item of what the source gives, and of its number.
        head: the first items.
    """

    def __init__(self, source: Iterable[Any], read: Callable[[Any, int], StreamItem], head: Dataset) -> None:
        super().__init__(
            head.store, name=head.name, split=head.split, labels=head.labels, class_names=head.class_names,
            flips=head.flips, view_names=head.view_names,
        )  # fmt: skip
        self.source = source
        self.read = read
        self._head = head

    def of_views(self, views: Sequence[int], argument: str = "views") -> Stream:
        """Return the same items with some of their views, by their numbers from 0; each item is read whole.

        Raises:
            UsageError: there is no such view.
        """

        def read(item: Any, position: int) -> StreamItem:
            whole = self._taken(item, position)
            return whole._replace(views=tuple(whole.views[view] for view in views))

        return Stream(self.source, read, self._head.of_views(views, argument))

    def items(self, number: int = 0) -> Iterator[StreamItem]:
        """Yield the items of a pass.

        Raises:
            StreamError: the source gives an error.
            UsageError: an item is not like the others.
        """
        if hasattr(self.source, "set_epoch"):
            self.source.set_epoch(number)
        given, position = self._begun(number), -1
        for position in itertools.count():
            try:
                item = next(given)
            except StopIteration:
                break
            except UsageError:
                raise
            except Exception as error:  # a stranger's code
                raise StreamError(
                    f"data: {self.name} broke before item {position} of pass {number}: {one_line_reason(error)}"
                ) from error
            yield self._taken(item, position)
        check(
            position > 0, f"data: {self.name} gave no item in pass {number}; it must begin again when it is iterated."
        )

    def batches(self, batch_size: int, *, skipped: int = 0, endless: bool = False) -> Iterator[Batch]:
        """Yield batches of neighbouring items, of one pass or, without end, of one after the other.

        Args:
            batch_size: items in a batch; of one pass the last may be smaller.
            skipped: how many batches to pass over.
            endless: whether another pass follows.
        """
        passes = itertools.count() if endless else range(1)
        items = enumerate(item for number in passes for item in self.items(number))
        rest = itertools.islice(items, skipped * batch_size, None)
        while chosen := list(itertools.islice(rest, batch_size)):
            yield self._batch(chosen)

    def _but(self, **changes: Any) -> NoReturn:
        """Refuse what would be a dataset of the first items alone."""
        raise UsageError(
            f"data: {self.name} is a stream, whose items are taken as they come; expected what its items are to be "
            "(image_size, labels) where the stream is made, by `from_stream`."
        )

    def _begun(self, number: int) -> Iterator[Any]:
        try:
            return iter(self.source)
        except Exception as error:  # a stranger's code
            raise StreamError(f"data: {self.name} cannot begin pass {number}: {one_line_reason(error)}") from error

    def _taken(self, item: Any, position: int) -> StreamItem:
        """Return what is made of what the source gave."""
        read = self.read(item, position)
        found = tuple(map(item_shape, read.views))
        told = f"data: {self.name}: item {position}: expected views of shapes {self.shapes} as before, got {found}"
        check(found == self.shapes, f"{told}; image_size makes images equal.")
        return read

    def _batch(self, chosen: list[tuple[int, StreamItem]]) -> Batch:
        views = tuple(concatenate_batches(parts) for parts in zip(*(item.views for _, item in chosen), strict=True))
        labels, keys = [item.label for _, item in chosen], [item.key for _, item in chosen]
        known = self.labels is not None
        lacking = next((number for number, item in chosen if known and item.label is None), None)
        check(lacking is None, f"data: {self.name}: item {lacking} has no label, others have.")
        return Batch(
            views=views,
            labels=torch.tensor(labels) if known else None,
            domains=None,
            ids=torch.tensor([number for number, _ in chosen]),
            keys=None if None in keys else tuple(map(str, keys)),
        )


def check_no_stream(dataset: Dataset) -> None:
    """Raise `UsageError` where the data are a stream, of which what looks at all items would see the first alone."""
    check(
        not isinstance(dataset, Stream),
        f"data: {dataset.name} is a stream, whose items come one after the other; expected data whose items are all "
        "there.",
    )
