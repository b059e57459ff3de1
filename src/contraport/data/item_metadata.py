"""Metadata of a source's items, used to build the dataset of a split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport.data.dataset import Dataset
from contraport.data.duplicate_groups import assign_content_ids_by_view, digest_encoded_items, group_by_shared_content
from contraport.data.image_decoding import choose_image_size, decode_images, log_undecodable_names_by_position
from contraport.data.splits import (
    DEFAULT_TEST_FRACTION,
    Codes,
    PositionArray,
    max_held_out_group_size,
    select_split_positions,
)
from contraport.data.stores import DecodingStore, ItemFilesOrBytes, Store, combine_views
from contraport.errors import UsageError, check

ItemFilesBytesOrStore: TypeAlias = ItemFilesOrBytes | Store
"""One view of all items of a source: undecoded images, or a store that has only this view."""


@dataclass(frozen=True)
class ItemMetadata:
    """Metadata of all training and test items of a source.

    Attributes:
        data_name: name of the data, for messages.
        num_items: number of items.
        labels: class of each item, as a code; or None.
        class_names: name of each class, or None without labels.
        domains: domain of each item, as a code; or None.
        domain_names: name of each domain, or None without domains.
        is_test: mask of the items that the source assigns to its test split; None if it has no test split.
        test_fraction: fraction of the items to hold out if the source has no test split, or the default.
        present: mask of the views that each item has, ``(n, views)``; None if no view is missing.
        weights: training weight of each item, or None.
        regression_targets: regression target of each item, or None.
        source_rows: row of each item in the source; None if every row of the source is an item.
        keys: name of each item in the source, such as a file path, or None.

    Raises:
        UsageError: a name is not valid Unicode, such as a file name in another encoding; no table could store it.
    """

    data_name: str
    num_items: int
    labels: Codes | None = None
    class_names: tuple[str, ...] | None = None
    domains: Codes | None = None
    domain_names: tuple[str, ...] | None = None
    is_test: NDArray[np.bool_] | None = None
    test_fraction: float | None = None
    present: NDArray[np.bool_] | None = None
    weights: Tensor | None = None
    regression_targets: Tensor | None = None
    source_rows: PositionArray | None = None
    keys: Sequence[str] | None = None

    def __post_init__(self) -> None:
        names = [*(self.keys or ()), *(self.class_names or ()), *(self.domain_names or ())]
        # Python keeps bytes that it cannot decode as lone surrogates.
        invalid = [name for name in names if any("\ud800" <= letter <= "\udfff" for letter in name)]
        if invalid:
            message = (
                f"names in {self.data_name!r} must be UTF-8, got {len(invalid):,} that are not, such as {invalid[0]!r}"
            )
            raise UsageError(f"data: {message}; rename them (convmv renames whole folders).", kind="not_unicode")

    def build_split_dataset(
        self,
        split: str,
        views: Sequence[ItemFilesBytesOrStore],
        *,
        image_size: int | None = None,
        view_names: tuple[str, ...] | None = None,
    ) -> Dataset:
        """Build the dataset of one split, without images that cannot be decoded.

        If the source marks no test split, items that share content in a view are in the same split, such as copies of
        a file or the captions of one image.

        Args:
            split: "train" or "test".
            views: views of all items.
            image_size: side of the square images; default: median shorter side of the training images.
            view_names: names of the views; default: ``view0``, ``view1``, ...

        Raises:
            UsageError: the split is empty, or none of its images can be decoded.
        """
        digests = self._compute_view_digests(views) if self.is_test is None else None
        groups = None
        if digests is not None:
            ids = assign_content_ids_by_view(digests, None if self.present is None else torch.from_numpy(self.present))
            fraction = DEFAULT_TEST_FRACTION if self.test_fraction is None else self.test_fraction
            groups = group_by_shared_content(ids, max_held_out_group_size(self.num_items, fraction)).group_ids
        chosen = self._select_split_positions(split, groups)
        number_held_out = len(chosen) if split == "test" else self.num_items - len(chosen)
        encoded = [
            (view, self._select_positions_with_view(view_index, chosen))
            for view_index, view in enumerate(views)
            if not isinstance(view, Store)
        ]
        what = "images" if len(chosen) == self.num_items else f"images of the {split} split"
        bad = log_undecodable_names_by_position(encoded, what=what) if encoded else {}
        good = np.array([position for position in chosen.tolist() if position not in bad], dtype=np.int64)
        training = chosen if split == "train" else self._select_split_positions("train", groups)
        stores = list[Store]()
        for view_index, view in enumerate(views):
            if isinstance(view, Store):
                stores.append(view.subset(good))
            else:
                having = self._select_positions_with_view(view_index, training)
                size = image_size or choose_image_size(view, having.tolist())
                positions = good
                if self.present is not None and len(having := self._select_positions_with_view(view_index, good)) > 0:
                    # A missing image is replaced by an existing one: never used, but a fetch has to decode something.
                    positions = np.where(self.present[good, view_index], good, having[0])
                stores.append(DecodingStore(view.subset(positions), (3, size, size), decode_images))
        index = torch.from_numpy(good)
        return Dataset(
            combine_views(stores),
            name=self.data_name,
            split=split,
            labels=None if self.labels is None else torch.from_numpy(self.labels[good]),
            domains=None if self.domains is None else torch.from_numpy(self.domains[good]),
            weights=None if self.weights is None else self.weights[index],
            regression_targets=None if self.regression_targets is None else self.regression_targets[index],
            class_names=self.class_names,
            domain_names=self.domain_names,
            allows_flips=bool(encoded),
            unreadable_files=tuple(bad.values()),
            num_random_test_items=number_held_out if self.is_test is None else None,
            present=None if self.present is None else torch.from_numpy(self.present[good]),
            source_rows=torch.from_numpy(good if self.source_rows is None else self.source_rows[good]),
            keys=None if self.keys is None else [self.keys[position] for position in good.tolist()],
            view_names=view_names or (),
            stored_digests=None if digests is None else digests[index],
        )

    def _select_split_positions(self, split: str, groups: Codes | None) -> PositionArray:
        """Return the positions of the items of one split, or raise `UsageError` if it has none."""
        chosen = select_split_positions(
            split,
            self.num_items,
            is_test=self.is_test,
            labels=self.labels,
            domains=self.domains,
            test_fraction=self.test_fraction,
            groups=groups,
        )
        message = (
            f"data: {self.num_items} items in {self.data_name} are too few to hold out any; equal items count as one."
        )
        check(len(chosen) > 0, message, "too_few")
        return chosen

    def _compute_view_digests(self, views: Sequence[ItemFilesBytesOrStore]) -> Tensor | None:
        """Return the digests of all items ``(n, views)``, or None if a store lacks them."""
        columns, everything = [], np.arange(self.num_items)
        for view_index, view in enumerate(views):
            if isinstance(view, Store):
                if view.view_content_digests is None:
                    return None
                columns.append(view.view_content_digests[:, 0])
                continue
            having = self._select_positions_with_view(view_index, everything)
            column = torch.zeros(self.num_items, dtype=torch.int64)
            column[torch.from_numpy(having)] = digest_encoded_items(view, having.tolist())
            columns.append(column)
        return torch.stack(columns, dim=1)

    def _select_positions_with_view(self, view_index: int, positions: PositionArray) -> PositionArray:
        """Return those `positions` at which the item has the view `view_index`."""
        return positions if self.present is None else positions[self.present[positions, view_index]]
