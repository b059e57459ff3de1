"""Dataset of one split, with one or more views, labels and domains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport._utils.text_bytes import TEXT_SHAPE
from contraport.data.duplicate_groups import assign_content_ids_by_view
from contraport.data.stores import ReorderedColumnStore, Shape, Store, SubsetStore, combine_views
from contraport.errors import UsageError, check
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

MAX_ITEMS_FOR_STATISTICS = 10_000
"""Maximum number of items in memory from which the statistics of a view are computed."""
_PER_ITEM_FIELDS = (
    "labels", "domains", "weights", "regression_targets", "present", "source_rows", "keys", "stored_digests",
    "entity_ids",
)  # fmt: skip
"""Fields with one row per item, which `subset` indexes."""


class Batch(NamedTuple):
    """Batch of items of a dataset as stored, before random views are made.

    Attributes:
        views: images ``(b, C, H, W)``, uint8 for [0, 1] or float32 as given; time series ``(b, C, T)`` and vectors
            ``(b, d)`` float32; texts uint8 ``(b, bytes)``, padded with zeros.
        labels: class of each item, or None.
        domains: domain of each item, or None.
        ids: position of each item in its dataset or stream.
        present: mask of the views that each item has, ``(b, views)``; None if no view is missing. The values of a
            missing view are meaningless.
        weights: weight of each item, or None.
        keys: name of each item of a stream, or None.
    """

    views: tuple[Tensor, ...]
    labels: Tensor | None
    domains: Tensor | None
    ids: Tensor
    present: Tensor | None = None
    weights: Tensor | None = None
    keys: tuple[str, ...] | None = None

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        # A blocking copy to a GPU would wait for all work queued there. Copies to a CPU have to block.
        non_blocking = torch.device(device).type == "cuda"
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in self._asdict().items()
            if isinstance(value, Tensor)
        }
        return self._replace(views=tuple(view.to(device, non_blocking=non_blocking) for view in self.views), **moved)


@accept_deprecated_keywords(rows="source_rows")
@keep_deprecated_attributes(
    content_digests="view_content_digests", digests="view_content_digests", align_names="align_codes_with",
    has_partial_items="has_missing_or_distrusted_views", has_view_mask="has_missing_or_distrusted_views",
    rows="source_rows", is_image="is_first_view_image", is_coupling="items_are_entity_pairs",
    content_ids_if_repeated="view_content_ids_if_repeated",
)  # fmt: skip
@dataclass(eq=False, repr=False)
class Dataset(torch.utils.data.Dataset[Batch]):
    """Items of one split of a source, fetched a batch at a time.

    Attributes:
        store: store that holds the views in memory or reads them from files.
        name: name of the data, for messages.
        split: name of the split, ``"train"`` or ``"test"``.
        labels: class of each item, int64 ``(n,)`` in ``0..len(class_names)-1``, or None.
        domains: domain of each item, int64 ``(n,)``, or None.
        weights: training weight of each item, float32 ``(n,)``, nonnegative, or None.
        regression_targets: regression target of each item, such as an age, float32 ``(n,)``, or None.
        class_names: names of the classes, or None without labels.
        domain_names: names of the domains, or None without domains.
        allows_flips: whether a horizontally flipped image keeps its meaning, so that random views may be flipped.
        unreadable_files: files or archive members that could not be read and were left out.
        num_random_test_items: size of the test split that was drawn at random; None if the source defines its own.
        present: mask of the views that each item has, Booleans ``(n, views)``; None if no view is missing.
        source_rows: row of each item in its source, counted over all splits and skipped items, int64 ``(n,)``.
        keys: name of each item in its source, such as a file path; None if items are identified by row only.
        view_names: names of the views, such as the columns of a table; default: ``view0``, ``view1``, ...
        column_names: for each view made of columns of numbers of a table, their names in order; empty for other views.
        stored_digests: the `view_content_digests` if they were computed before, or None.
        entity_ids: row and column of each pair of a coupling, in their own sets, int64 ``(n, views)``; None for other
            data; see `contraport.data.from_coupling`.
        entity_keys: keys of the rows and of the columns of a coupling, in the order of their own sets; None for other
            data. A dataset of one of these views has them as `keys`.
        has_mismatched_partners: whether pairs were mismatched on purpose, so that each batch has the view of each
            item's partner too, from which the views after the first are made; see `replace_views_after_first`.

    >>> import numpy as np
    >>> from contraport.data import from_arrays
    >>> dataset = from_arrays(np.zeros((10, 28, 28), np.uint8), labels=[0, 1] * 5)
    >>> dataset.shapes, dataset.is_first_view_image, len(dataset)
    (((1, 28, 28),), True, 10)
    >>> batch = dataset.__getitems__([3, 1])
    >>> batch.views[0].shape, batch.labels.tolist(), batch.ids.tolist()
    (torch.Size([2, 1, 28, 28]), [1, 1], [3, 1])
    """

    has_mismatched_partners: ClassVar[bool] = False

    store: Store
    name: str
    split: str
    labels: Tensor | None = None
    domains: Tensor | None = None
    weights: Tensor | None = None
    regression_targets: Tensor | None = None
    class_names: tuple[str, ...] | None = None
    domain_names: tuple[str, ...] | None = None
    allows_flips: bool = False
    unreadable_files: tuple[str, ...] = ()
    num_random_test_items: int | None = None
    present: Tensor | None = None
    source_rows: Tensor = None  # type: ignore[assignment]  # all rows, see __post_init__
    keys: Sequence[str] | None = None
    view_names: tuple[str, ...] = ()
    column_names: tuple[tuple[str, ...], ...] = ()
    stored_digests: Tensor | None = None
    entity_ids: Tensor | None = None
    entity_keys: tuple[Sequence[str], ...] | None = None

    def __post_init__(self) -> None:
        items, views = len(self.store), len(self.store.shapes)
        check(items > 0, f"data: {self.name!r} has no item in its {self.split} split; give more items.", "empty")
        self.source_rows = torch.arange(items) if self.source_rows is None else self.source_rows
        for argument in _PER_ITEM_FIELDS:
            values = getattr(self, argument)
            if values is not None:
                shape = tuple(values.shape) if isinstance(values, Tensor) else (len(values),)
                expected = (items, views) if argument in ("present", "stored_digests", "entity_ids") else (items,)
                if shape != expected:
                    # As in `from_arrays` and in earlier versions.
                    argument = {"regression_targets": "numbers", "source_rows": "rows"}.get(argument, argument)
                    raise UsageError(f"{argument}: must have shape {expected}, got {shape}.", kind="shape")
        self.view_names = tuple(self.view_names or (f"view{view}" for view in range(views)))
        good = len(set(self.view_names)) == len(self.view_names) == views
        check(good, f"view_names: must be {views} distinct names for {self.name!r}, got {self.view_names}.")
        self.column_names = self.column_names or ((),) * views
        if self.present is not None:
            empty = (~self.present.any(1)).nonzero()[:, 0].tolist()
            message = f"{len(empty)} items have no view at all, first {empty[:3]}; leave them out."
            check(not empty, f"data: {self.name!r}: {message}", "item_without_view")
            unused = (~self.present.any(0)).nonzero()[:, 0].tolist()
            message = f"no item of its {self.split} split has the views {unused}."
            check(not unused, f"data: {self.name!r}: {message}", "view_without_item")
            self.present = None if bool(self.present.all()) else self.present

    @property
    def items_are_entity_pairs(self) -> bool:
        """True if each item pairs entities of two sets, such as users and products."""
        return self.entity_ids is not None

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shape of one item of each view.

        ``(C, H, W)`` for images, ``(C, T)`` for series, ``(d,)`` for vectors, ``()`` for texts.
        """
        return self.store.shapes

    @property
    def view_content_digests(self) -> Tensor | None:
        """Content digest of each item in each view, int64 ``(n, views)``.

        The first access reads all items. None if items may differ at each fetch, as those of a torch dataset. The
        digest of a missing view is meaningless.
        """
        if self.stored_digests is None:
            self.stored_digests = self.store.view_content_digests
        return self.stored_digests

    @cached_property
    def view_content_ids_if_repeated(self) -> Tensor | None:
        """Integer id of each view's content, ``(n, views)``, or None if none repeats.

        Equal contents have equal ids: an image with two captions, two items, has one id in the image view. Without
        digests, no content counts as repeated.
        """
        if self.entity_ids is not None:
            ids = self.entity_ids
        elif self.view_content_digests is None:
            return None
        else:
            ids = assign_content_ids_by_view(self.view_content_digests, self.present)
        is_repeated = any(len(column.unique()) < len(column) for column in ids.unbind(1))
        return ids if is_repeated else None

    @property
    def is_first_view_image(self) -> bool:
        """True if the first view is an image."""
        return len(self.shapes[0]) == 3

    @property
    def has_missing_or_distrusted_views(self) -> bool:
        """True if some items lack a view, or (in a subclass) have one that an audit distrusts."""
        return self.present is not None

    @property
    def is_in_memory(self) -> bool:
        """True if all items are in memory, so that loading requires no workers."""
        return self.store.is_in_memory

    def __repr__(self) -> str:
        views = ", ".join(f"{name} {shape}" for name, shape in zip(self.view_names, self.shapes, strict=True))
        count = pluralize(len(self), "pair" if self.items_are_entity_pairs else "item")
        return f"{type(self).__name__}({self.name!r}, {self.split}: {count}, {views})"

    def __len__(self) -> int:
        return len(self.store)

    def __getitems__(self, positions: list[int]) -> Batch:
        """Return the items at given positions as one batch."""
        ids = torch.as_tensor(positions, dtype=torch.int64)
        return Batch(
            views=self.store.fetch_views(ids),
            labels=None if self.labels is None else self.labels[ids],
            domains=None if self.domains is None else self.domains[ids],
            ids=ids,
            present=None if self.present is None else self.present[ids],
            weights=None if self.weights is None else self.weights[ids],
        )

    def __getitem__(self, position: int) -> Batch:
        """Return a batch of one item."""
        return self.__getitems__([range(len(self))[position]])

    def replace_fields(self, **changes: Any) -> Dataset:
        """Return a copy with some fields replaced."""
        return Dataset(**self.get_field_values() | changes)

    def get_field_values(self) -> dict[str, Any]:
        """Return the value of each dataclass field by name."""
        return {field.name: getattr(self, field.name) for field in fields(Dataset)}

    def with_store(
        self, store: Store, view_names: tuple[str, ...] | None = None, *, keep_digests: bool = True
    ) -> Dataset:
        """Return the dataset with its views read from another store.

        Args:
            store: the other store.
            view_names: default: the current names, if the number of views is the same.
            keep_digests: whether the content is considered unchanged; otherwise the digests are the new store's.
        """
        same_views = len(store.shapes) == len(self.shapes)
        names = view_names or (self.view_names if same_views else None)
        digests = self.stored_digests if same_views and keep_digests else None
        columns = self.column_names if same_views else ()
        return self.replace_fields(store=store, view_names=names, column_names=columns, stored_digests=digests)

    def align_codes_with(self, other: Dataset) -> Dataset:
        """Renumber classes and domains as in `other`, matched by name.

        Names that the other dataset lacks are numbered after its own.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> train = from_arrays(np.ones((3, 2)), labels=["cat", "cow", "dog"])
        >>> test = from_arrays(np.ones((3, 2)), labels=["dog", "ant", "cat"]).align_codes_with(train)
        >>> test.labels.tolist(), test.class_names
        ([2, 3, 0], ('cat', 'cow', 'dog', 'ant'))
        """
        labels, class_names = _join_names_and_renumber(self.labels, self.class_names, other.class_names)
        domains, domain_names = _join_names_and_renumber(self.domains, self.domain_names, other.domain_names)
        return self.replace_fields(labels=labels, class_names=class_names, domains=domains, domain_names=domain_names)

    def select_views(self, views: Sequence[int], argument: str = "views") -> Self | Dataset:
        """Return the dataset with only some of its views, chosen by index.

        Raises:
            UsageError: there is no such view, or an item has none of these.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> from_arrays({"ear": np.ones((3, 2)), "eye": np.ones((3, 4))}).select_views([1]).shapes
        ((4,),)
        """
        number = len(self.shapes)
        good = len(views) > 0 and all(0 <= view < number for view in views)
        check(good, f"{argument}: must be numbers from 0 to {number - 1} for {self.name!r}, got {list(views)}.")
        columns, keys, entity_keys = list(views), self.keys, None
        if self.entity_ids is not None and self.entity_keys is not None:
            entity_keys = tuple(self.entity_keys[view] for view in views)
            if len(views) == 1:  # a pair is named by both of its entities
                keys = [entity_keys[0][number] for number in self.entity_ids[:, columns[0]].tolist()]
        return self.replace_fields(
            store=self.store.select_views(tuple(views)),
            view_names=[self.view_names[view] for view in views],
            column_names=tuple(self.column_names[view] for view in views),
            present=None if self.present is None else self.present[:, columns],
            stored_digests=None if self.stored_digests is None else self.stored_digests[:, columns],
            entity_ids=None if self.entity_ids is None else self.entity_ids[:, columns],
            keys=keys,
            entity_keys=entity_keys,
        )

    def order_columns_as(self, column_names: Sequence[Sequence[str]]) -> Dataset:
        """Order each view's columns as the list in `column_names` that has the same names.

        A view whose names differ from those of all entries stays as it is.

        >>> import pandas
        >>> from contraport.data import load
        >>> table = load(pandas.DataFrame({"age": [1] * 9, "height": [2] * 9}), test_fraction=0)
        >>> table.column_names, table.order_columns_as([["height", "age"]]).__getitems__([0]).views
        ((('age', 'height'),), (tensor([[2., 1.]]),))
        """
        by_names = {frozenset(names): tuple(names) for names in column_names}
        ordered = tuple([by_names.get(frozenset(names), names) for names in self.column_names])
        if ordered == self.column_names:
            return self
        stores = [self.store.select_views((view,)) for view in range(len(ordered))]
        for view, (new, old) in enumerate(zip(ordered, self.column_names, strict=True)):
            if new != old:
                stores[view] = ReorderedColumnStore(stores[view], tuple(map(old.index, new)))
        return self.replace_fields(store=combine_views(stores), column_names=ordered, stored_digests=None)

    def subset(self, positions: Tensor, split: str | None = None, *, subset_store: Store | None = None) -> Dataset:
        """Return a dataset of the items at given positions.

        `positions` is int64 ``(m,)``. `split` is the name of the new split; default: the current one.
        `subset_store` has the views of these items, if they were copied.
        """
        per_item = {name: values for name in _PER_ITEM_FIELDS if (values := getattr(self, name)) is not None}
        chosen = {
            name: values[positions] if isinstance(values, Tensor) else [values[row] for row in positions.tolist()]
            for name, values in per_item.items()
        }
        store = SubsetStore(self.store, positions) if subset_store is None else subset_store
        return self.replace_fields(store=store, split=split or self.split, **chosen)

    def drop_duplicates(self) -> Dataset:
        """Keep only the first of the items with equal content in all views."""
        if self.view_content_ids_if_repeated is None:
            return self
        _, which = torch.unique(self.view_content_ids_if_repeated, dim=0, return_inverse=True)
        first = torch.full((int(which.max()) + 1,), len(self))
        return self.subset(first.scatter_reduce(0, which, torch.arange(len(self)), "amin").sort().values)

    def drop_incomplete(self) -> Dataset:
        """Return the dataset without the items that lack a view.

        Raises:
            UsageError: no item has all views.
        """
        if self.present is None:
            return self
        complete = self.present.all(1).nonzero()[:, 0]
        message = f"data: no item of the {self.split} split of {self.name!r} has all its views."
        check(len(complete) > 0, message, "no_complete_item")
        return self.subset(complete)

    def find_constant_view(self, num_sampled_items: int) -> str | None:
        """Return the name of a constant view, judged by sampled items, or None.

        The sampled items are evenly spaced. A few items suffice: reading all of them could take minutes.
        """
        positions = torch.linspace(0, len(self) - 1, min(num_sampled_items, len(self))).long().tolist()
        views = zip(self.view_names, self.__getitems__(positions).views, strict=True)
        return next((view for view, values in views if not bool((values != values[0]).any())), None)

    def mean_and_std(self, view: int = 0) -> tuple[list[float], list[float]]:
        """Return the mean and the standard deviation of one view.

        Per channel of images (in units of [0, 1]) and time series, per feature of vectors, empty for texts. Computed
        over at most 10,000 evenly spread items that have the view, or 1,000 if each is decoded from a file. A constant
        channel has standard deviation 1, so that standardizing maps it to 0.

        Raises:
            UsageError: there is no such view.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> from_arrays(np.array([[1.0, 5.0], [3.0, 5.0]])).mean_and_std()
        ([2.0, 5.0], [1.0, 1.0])
        """
        check(0 <= view < len(self.shapes), f"view: must be from 0 to {len(self.shapes) - 1}, got {view}.")
        if self.shapes[view] == TEXT_SHAPE:
            return [], []
        shift: Tensor | float = 0.0
        total: Tensor | float = 0.0
        square: Tensor | float = 0.0
        count = 0
        for number, items in enumerate(self._iterate_blocks_of_evenly_spaced_items(view)):
            values = items.double().div_(255.0 if items.dtype == torch.uint8 else 1.0).transpose(0, 1).flatten(1)
            if number == 0:
                shift = values.mean(dim=1, keepdim=True)  # squares about a nearby mean lose no digits
            values = values - shift
            total, square, count = total + values.sum(1), square + values.square().sum(1), count + values.shape[1]
        offset, square = torch.as_tensor(total) / count, torch.as_tensor(square) / count
        mean = offset + torch.as_tensor(shift).flatten()
        std = (square - offset.square()).clamp(min=0).sqrt()
        std = torch.where(std <= 1e-7 * mean.abs(), 1.0, std)  # variation by float32 rounding alone counts as constant
        return mean.tolist(), std.tolist()

    def non_unit_channel_range(self, view: int = 0) -> tuple[list[float], list[float]] | None:
        """Return each channel's minimum and maximum, or None if within [0, 1].

        Computed over the same items as `mean_and_std`. The maximum of a constant channel is its value plus 1.

        >>> import numpy as np
        >>> from contraport.data import from_arrays
        >>> counts = np.arange(64, dtype=np.uint16).reshape(1, 1, 8, 8)
        >>> from_arrays(counts).non_unit_channel_range(), from_arrays(counts / 63).non_unit_channel_range()
        (([0.0], [63.0]), None)
        """
        # Decoding one image file shows the type of all.
        if next(self._iterate_blocks_of_evenly_spaced_items(view, max_items=1)).dtype == torch.uint8:
            return None
        channels = (items.transpose(0, 1).flatten(1) for items in self._iterate_blocks_of_evenly_spaced_items(view))
        lows, highs = zip(*((values.amin(1), values.amax(1)) for values in channels), strict=True)
        low, high = torch.stack(lows).amin(0), torch.stack(highs).amax(0)
        if bool((low >= 0).all() and (high <= 1).all()):
            return None
        return low.tolist(), torch.where(high > low, high, low + 1).tolist()

    def _iterate_blocks_of_evenly_spaced_items(
        self, view: int, max_items: int = MAX_ITEMS_FOR_STATISTICS
    ) -> Iterator[Tensor]:
        """Yield a view's values at evenly spaced items, block by block."""
        limit = min(max_items, MAX_ITEMS_FOR_STATISTICS if self.is_in_memory else 1_000)  # decoding files is slow
        having = torch.arange(len(self)) if self.present is None else self.present[:, view].nonzero()[:, 0]
        spread = torch.linspace(0, len(having) - 1, min(limit, len(having)), dtype=torch.float64).round().long()
        chunk = max(1, min(500, 4_000_000 // math.prod(self.shapes[view])))  # items; values of the view
        for positions in having[spread].split(chunk):
            yield self.store.fetch_views(positions)[view]


def _join_names_and_renumber(
    codes: Tensor | None, names: tuple[str, ...] | None, leading_names: tuple[str, ...] | None
) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Extend `leading_names` by other `names`, and renumber the codes of `names` to match."""
    if codes is None or names is None or leading_names is None or names == leading_names:
        return codes, names
    joined = tuple(dict.fromkeys([*leading_names, *names]))
    return torch.tensor([joined.index(name) for name in names])[codes], joined
