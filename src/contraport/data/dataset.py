"""What a source gives: items of one or more views, with labels and domains where the source knows them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from contraport._utils.text_tensors import is_text_shape
from contraport.data.channel_statistics import channel_range, mean_and_std
from contraport.data.duplicate_groups import content_ids, has_repeats
from contraport.data.stores import Store, SubsetStore, ViewSubsetStore
from contraport.errors import UsageError, check

STATISTICS_ITEMS = 10_000
STATISTICS_FILES = 1_000
_CHUNK_VALUES = 4_000_000
_LARGEST_CHUNK = 500
_OF_ITEMS = ("labels", "domains", "weights", "numbers", "present", "rows", "keys")
_OF_ALL = ("store", "name", "split", "view_names", "class_names", "domain_names", "flips", "skipped", "held_out")


class Batch(NamedTuple):
    """Some items of a dataset, raw, as views.

    Images are ``(b, C, H, W)``, uint8, which stands for [0, 1], or float32 as they came; time series ``(b, C, T)`` and
    vectors ``(b, d)`` float32; texts uint8 ``(b, bytes)``, zeros behind the shorter ones. Where items lack a view,
    `present` says which have which, ``(b, views)``; what stands in place of the others means nothing. `keys`
    is what a stream calls each, where it does.
    """

    views: tuple[Tensor, ...]
    labels: Tensor | None
    domains: Tensor | None
    ids: Tensor
    present: Tensor | None = None
    weights: Tensor | None = None
    keys: tuple[str, ...] | None = None

    def to(self, device: torch.device | str) -> Batch:
        """Return the same items on a device."""
        # Without it a copy to a GPU waits for all the work that is queued there. Copies to a CPU have to wait.
        late = torch.device(device).type == "cuda"
        moved: dict[str, Any] = {
            n: v.to(device, non_blocking=late) for n, v in self._asdict().items() if isinstance(v, Tensor)
        }
        return self._replace(views=tuple(view.to(device, non_blocking=late) for view in self.views), **moved)


Kind = TypeVar("Kind", bound="Dataset")


class Dataset(torch.utils.data.Dataset[Batch]):
    """The items of one split of one source, fetched a batch at a time.

    Attributes:
        name: what the user called the data.
        split: ``"train"`` or ``"test"``.
        view_names: what the views are called, such as the columns of a table: ``view0``, ``view1`` and so on unless the
            source says more.
        shapes: the shape of one item of each view: ``(C, H, W)`` an image, ``(C, T)`` a time series, ``(d,)`` a vector,
            ``()`` a text.
        labels: class of each item, int64 ``(n,)`` in ``0..len(class_names)-1``, or None.
        domains: domain of each item, int64 ``(n,)``, or None.
        weights: how much each item counts in a training, float32 ``(n,)``, nonnegative, or None.
        numbers: a number of each item that is to be told from it, such as an age, float32 ``(n,)``, or None.
        class_names: the names of the classes, or None without labels.
        domain_names: the names of the domains, or None without domains.
        flips: whether a horizontal flip keeps the meaning of an image.
        skipped: the items that could not be read and were left out, by file or member.
        held_out: how many items were drawn to be the test split; None where the source says which they are.
        present: which items have which views, Booleans ``(n, views)``; None where all have all.
        rows: the number of each item in its source, all splits of it and what was left out counted, int64 ``(n,)``.
        keys: what the source calls each item, such as the path of a file; None where it has only rows.
        paired: whether batches bring of the one given view each item's partner too, of which the views after the first
            are made; see `contraport.data.perturbations`.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> dataset = from_arrays(np.zeros((10, 28, 28), np.uint8), labels=[0, 1] * 5)
    >>> dataset.shapes, dataset.is_image, len(dataset)
    (((1, 28, 28),), True, 10)
    >>> batch = dataset.__getitems__([3, 1])
    >>> batch.views[0].shape, batch.labels.tolist(), batch.ids.tolist()
    (torch.Size([2, 1, 28, 28]), [1, 1], [3, 1])
    """

    paired = False

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        split: str,
        labels: Tensor | None = None,
        domains: Tensor | None = None,
        weights: Tensor | None = None,
        numbers: Tensor | None = None,
        class_names: tuple[str, ...] | None = None,
        domain_names: tuple[str, ...] | None = None,
        flips: bool = False,
        skipped: tuple[str, ...] = (),
        held_out: int | None = None,
        present: Tensor | None = None,
        rows: Tensor | None = None,
        keys: Sequence[str] | None = None,
        view_names: Sequence[str] | None = None,
        digests: Tensor | None = None,
    ) -> None:
        items, views = len(store), len(store.shapes)
        check(items > 0, f"data: {name!r} has no item in its {split} split.")
        rows = torch.arange(items) if rows is None else rows
        of_items = (("labels", labels), ("domains", domains), ("weights", weights), ("numbers", numbers))
        for argument, values in (*of_items, ("rows", rows), ("keys", keys)):
            if values is not None:
                found = tuple(values.shape) if isinstance(values, Tensor) else (len(values),)
                if found != (items,):
                    raise UsageError(f"{argument}: expected one for each of {items} items, got {found}.")
        for argument, marks in (("present", present), ("digests", digests)):
            if marks is not None:
                found = tuple(marks.shape)
                good = found == (items, views)
                check(good, f"{argument}: expected one for each item and view, {(items, views)}, got {found}.")
        self.view_names = tuple(f"view{view}" for view in range(views)) if view_names is None else tuple(view_names)
        good = len(set(self.view_names)) == len(self.view_names) == views
        check(good, f"view_names: expected {views} different names of {name!r}, got {self.view_names}.")
        self.store = store
        self.name = name
        self.split = split
        self.labels = labels
        self.domains = domains
        self.weights = weights
        self.numbers = numbers
        self.class_names = class_names
        self.domain_names = domain_names
        self.flips = flips
        self.skipped = skipped
        self.held_out = held_out
        self.rows = rows
        self.keys = keys
        self.present = None if present is None or bool(present.all()) else present
        self._check_present()
        self._digests = digests

    def _check_present(self) -> None:
        """Raise `UsageError` where an item lacks all views, or all items lack a view."""
        if self.present is None:
            return
        lost = (~self.present.any(1)).nonzero()[:, 0].tolist()
        told = f"{len(lost)} items have no view at all, first {lost[:3]}; leave them out."
        check(not lost, f"data: {self.name!r}: {told}")
        never = (~self.present.any(0)).nonzero()[:, 0].tolist()
        check(not never, f"data: {self.name!r}: no item of its {self.split} split has the views {never}.")

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return self.store.shapes

    @property
    def digests(self) -> Tensor | None:
        """Digests of the content of each item in each view, int64 ``(n, views)``.

        They are computed when they are first read, from all items. None where items are made anew at each fetch, as by
        a torch dataset, which may change them at random. That of a view that an item lacks means nothing.
        """
        if self._digests is None:
            self._digests = self.store.digests
        return self._digests

    @cached_property
    def content_ids(self) -> Tensor | None:
        """Numbers that are equal where two items have the same content in a view, int64 ``(n, views)``.

        Such as one image with two captions. None where no content repeats, or where there are no digests.
        """
        if self.digests is None:
            return None
        ids = content_ids(self.digests, self.present)
        return ids if has_repeats(ids) else None

    @property
    def is_image(self) -> bool:
        """Whether the first view is an image."""
        return len(self.shapes[0]) == 3

    @property
    def in_memory(self) -> bool:
        """Whether a fetch only copies memory, so that worker processes would gain nothing."""
        return self.store.in_memory

    def __len__(self) -> int:
        return len(self.store)

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return the items at some positions as one batch."""
        ids = torch.as_tensor(positions, dtype=torch.int64)
        return Batch(
            views=self.store.fetch(ids),
            labels=None if self.labels is None else self.labels[ids],
            domains=None if self.domains is None else self.domains[ids],
            ids=ids,
            present=None if self.present is None else self.present[ids],
            weights=None if self.weights is None else self.weights[ids],
        )

    def __getitem__(self, position: int) -> Batch:
        """Return a batch of one item."""
        return self.__getitems__([range(len(self))[position]])

    def with_store(
        self, store: Store, view_names: Sequence[str] | None = None, *, keep_digests: bool = True
    ) -> Dataset:
        """Return the same items with their views in another store.

        Args:
            store: the other store.
            view_names: default: the same names, where there are as many views.
            keep_digests: whether the content is that of before, however it is kept now; else it is the store's.
        """
        as_many = len(store.shapes) == len(self.shapes)
        names = view_names or (self.view_names if as_many else None)
        return self._but(store=store, view_names=names, digests=self._digests if as_many and keep_digests else None)

    def without_labels(self) -> Dataset:
        """Return the same items without classes."""
        return self._but(labels=None, class_names=None)

    def of_views(self, views: Sequence[int], argument: str = "views") -> Dataset:
        """Return the same items with some of their views, by their numbers from 0; `argument` is what messages call it.

        Raises:
            UsageError: there is no such view, or an item has none of these.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> from_arrays({"ear": np.ones((3, 2)), "eye": np.ones((3, 4))}).of_views([1]).shapes
        ((4,),)
        """
        there = len(self.shapes)
        good = len(views) > 0 and all(0 <= view < there for view in views)
        check(good, f"{argument}: {self.name!r} has {there}, numbered from 0; got {list(views)}.")
        present = None if self.present is None else self.present[:, list(views)]
        names = [self.view_names[view] for view in views]
        digests = None if self._digests is None else self._digests[:, list(views)]
        return self._but(
            store=ViewSubsetStore(self.store, tuple(views)), present=present, view_names=names, digests=digests
        )

    def drop_duplicates(self) -> Dataset:
        """Return the first of all items that have the same content in each view."""
        if self.content_ids is None:
            return self
        _, which = torch.unique(self.content_ids, dim=0, return_inverse=True)
        firsts = torch.full((int(which.max()) + 1,), len(self))
        first = firsts.scatter_reduce(0, which, torch.arange(len(self)), "amin").sort().values
        return self.only(first)

    def with_weights(self, weights: Tensor | None) -> Dataset:
        """Return the same items with other weights, or with none."""
        return self._but(weights=weights)

    def with_domains(self, domains: Tensor, names: tuple[str, ...]) -> Dataset:
        """Return the same items, of some domains."""
        return self._but(domains=domains, domain_names=names)

    def only(self, positions: Tensor, split: str | None = None) -> Dataset:
        """Return the items at some positions, int64 ``(m,)``, as those of their split or of another."""
        chosen = SubsetStore(self.store, positions)
        return self.at(positions, chosen, split=split or self.split, held_out=self.held_out)

    def align_names(self, other: Dataset) -> Dataset:
        """Return the same items with the numbers that another dataset has for their classes and domains, by name.

        What the other one does not know comes after what it knows.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> train = from_arrays(np.ones((3, 2)), labels=["cat", "cow", "dog"])
        >>> test = from_arrays(np.ones((3, 2)), labels=["dog", "ant", "cat"]).align_names(train)
        >>> test.labels.tolist(), test.class_names
        ([2, 3, 0], ('cat', 'cow', 'dog', 'ant'))
        """
        labels, class_names = _renamed(self.labels, self.class_names, other.class_names)
        domains, domain_names = _renamed(self.domains, self.domain_names, other.domain_names)
        return self._but(labels=labels, class_names=class_names, domains=domains, domain_names=domain_names)

    def complete(self) -> Dataset:
        """Return the items that have all their views.

        Raises:
            UsageError: there are none.
        """
        if self.present is None:
            return self
        there = self.present.all(1).nonzero()[:, 0]
        check(len(there) > 0, f"data: no item of the {self.split} split of {self.name!r} has all its views.")
        return self.only(there)._but(present=None)

    def at(self, positions: Tensor | slice, store: Store, *, split: str, held_out: int | None) -> Dataset:
        """Return the items at some positions, whose views a store has; see `Dataset` for the rest."""
        kept = {name: getattr(self, name) for name in _OF_ITEMS}
        kept["digests"] = self._digests
        of_items = {name: None if values is None else _some(values, positions) for name, values in kept.items()}
        return self._but(store=store, split=split, held_out=held_out, **of_items)

    def _but(self, **changes: Any) -> Dataset:
        """Return the same items, of which some is otherwise."""
        return Dataset(**self._parts | changes)

    def as_subclass(self, kind: type[Kind]) -> Kind:
        """Return the same items as a dataset that gives them in another way."""
        return kind(**self._parts)

    @property
    def _parts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _OF_ALL + _OF_ITEMS} | {"digests": self._digests}

    def statistics(self, view: int = 0) -> tuple[list[float], list[float]]:
        """Return the mean and the standard deviation of one view.

        Per channel for images (in units of [0, 1]) and time series, per feature for vectors, nothing for texts; over at
        most 10,000 items that have it, spread evenly (1,000 where each has to be decoded from a file). What is constant
        has standard deviation 1, so that standardising makes it 0.

        Args:
            view: which view, from 0.

        Raises:
            UsageError: there is no such view.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> from_arrays(np.array([[1.0, 5.0], [3.0, 5.0]])).statistics()
        ([2.0, 5.0], [1.0, 1.0])
        """
        self._check_view(view)
        if is_text_shape(self.shapes[view]):
            return [], []
        return mean_and_std(self._sampled(view))

    def pixel_range(self, view: int = 0) -> tuple[list[float], list[float]] | None:
        """Return the least and the largest value of each channel of an image, or None where all are within [0, 1].

        Over the items that `statistics` looks at; where a channel has one value only, the largest is that and 1.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> counts = np.arange(64, dtype=np.uint16).reshape(1, 1, 8, 8)
        >>> from_arrays(counts).pixel_range(), from_arrays(counts / 63).pixel_range()
        (([0.0], [63.0]), None)
        """
        if next(self._sampled(view, most=1)).dtype == torch.uint8:  # of files, none is read for what one tells
            return None
        return channel_range(self._sampled(view))

    def _check_view(self, view: int) -> None:
        check(0 <= view < len(self.shapes), f"view: expected one of {len(self.shapes)} views from 0, got {view}.")

    def _sampled(self, view: int, most: int = STATISTICS_ITEMS) -> Iterator[Tensor]:
        """Yield one view of items that have it, spread evenly, some at a time."""
        self._check_view(view)
        limit = min(most, STATISTICS_ITEMS if self.in_memory else STATISTICS_FILES)
        having = torch.arange(len(self)) if self.present is None else self.present[:, view].nonzero()[:, 0]
        spread = torch.linspace(0, len(having) - 1, min(limit, len(having)), dtype=torch.float64).round().long()
        chunk_items = max(1, min(_LARGEST_CHUNK, _CHUNK_VALUES // math.prod(self.shapes[view])))
        for chunk in having[spread].split(chunk_items):
            yield self.store.fetch(chunk)[view]


def _some(values: Tensor | Sequence[str], positions: Tensor | slice) -> Tensor | Sequence[str]:
    """Return the values at some positions."""
    if isinstance(values, Tensor):
        return values[positions]
    if isinstance(positions, slice):
        return values[positions]
    return [values[position] for position in positions.tolist()]


def _renamed(
    codes: Tensor | None, names: tuple[str, ...] | None, known: tuple[str, ...] | None
) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Return codes as those of the known names, and all names in the order of their codes."""
    if codes is None or names is None or known is None or names == known:
        return codes, names
    together = tuple(dict.fromkeys([*known, *names]))
    return torch.tensor([together.index(name) for name in names])[codes], together
