"""The items of both splits of a source, and the one way to make a dataset of one split of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from contraport.data.dataset import Dataset, JoinedStore, Store
from contraport.data.decoding import EncodedImages, ImageStore, common_size, unreadable
from contraport.data.splits import Codes, Marks, Positions, count_held_out, items_of
from contraport.errors import check

View: TypeAlias = EncodedImages | Callable[[Positions], Store]
"""A view of all items: encoded images, or what makes a store of the items at some positions."""


@dataclass(frozen=True)
class Items:
    """What is known of the items of a source beside their views: their number, classes, domains, weights and splits."""

    name: str
    length: int
    labels: Codes | None = None
    class_names: tuple[str, ...] | None = None
    domains: Codes | None = None
    domain_names: tuple[str, ...] | None = None
    is_test: Marks | None = None  # None: the source marks no test split
    test_fraction: float | None = None  # what to hold out then; None: as much as `HELD_OUT` says
    present: Marks | None = None  # which items have which views, (n, views); None: all have all
    weights: Tensor | None = None
    numbers: Tensor | None = None  # what is to be told of the items
    rows: Positions | None = None  # of each item in its source; None: they are all of its rows
    keys: Sequence[str] | None = None  # what the source calls each

    def positions(self, split: str) -> Positions:
        """Return the positions of one split."""
        chosen = items_of(
            split,
            self.length,
            is_test=self.is_test,
            labels=self.labels,
            domains=self.domains,
            fraction=self.test_fraction,
        )
        check(len(chosen) > 0, f"data: {self.length} items in {self.name} are too few to hold some out.")
        return chosen

    def dataset(
        self, split: str, views: Sequence[View], *, image_size: int | None, view_names: Sequence[str] | None = None
    ) -> Dataset:
        """Return one split, without the items whose images cannot be decoded.

        Args:
            split: "train" or "test".
            views: the views of all items.
            image_size: side of the square that images become; default: the median shorter side of the training images.
            view_names: what the views are called; default: ``view0``, ``view1`` and so on.

        Raises:
            UsageError: the split is empty, or none of its images can be decoded.
        """
        chosen = self.positions(split)
        encoded = [view for view in views if not callable(view)]
        bad = unreadable(encoded, chosen.tolist()) if encoded else {}
        good = np.array([position for position in chosen.tolist() if position not in bad], dtype=np.int64)
        stores = tuple(self._store(view, good, image_size) for view in views)
        return Dataset(
            stores[0] if len(stores) == 1 else JoinedStore(stores),
            name=self.name,
            split=split,
            labels=None if self.labels is None else torch.from_numpy(self.labels[good]),
            domains=None if self.domains is None else torch.from_numpy(self.domains[good]),
            weights=None if self.weights is None else self.weights[torch.from_numpy(good)],
            numbers=None if self.numbers is None else self.numbers[torch.from_numpy(good)],
            class_names=self.class_names,
            domain_names=self.domain_names,
            flips=bool(encoded),
            skipped=tuple(bad.values()),
            held_out=count_held_out(split, self.length, chosen) if self.is_test is None else None,
            present=None if self.present is None else torch.from_numpy(self.present[good]),
            rows=torch.from_numpy(good if self.rows is None else self.rows[good]),
            keys=None if self.keys is None else [self.keys[position] for position in good.tolist()],
            view_names=view_names,
        )

    def _store(self, view: View, positions: Positions, image_size: int | None) -> Store:
        if callable(view):
            return view(positions)
        size = image_size or common_size(view, self.positions("train").tolist())
        return ImageStore(view.take(positions), size)
