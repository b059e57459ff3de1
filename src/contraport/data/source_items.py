"""The items of both splits of a source, and the one way to make a dataset of one split of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from contraport.data.dataset import Dataset
from contraport.data.decoding import EncodedImages, ImageStore, default_image_size, unreadable
from contraport.data.digests import digest_encoded
from contraport.data.duplicate_groups import content_groups, content_ids
from contraport.data.splits import Codes, Marks, Positions, count_held_out, max_group_size, select_split
from contraport.data.stores import Store, join_stores
from contraport.errors import UsageError, check

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

    def __post_init__(self) -> None:
        """Check that all names are text.

        Raises:
            UsageError: some are not, and could be written into no table or page, as of files from other systems.
        """
        names = [*(self.keys or ()), *(self.class_names or ()), *(self.domain_names or ())]
        if not all(map(_is_unicode, names)):
            strange = [name for name in names if not _is_unicode(name)]
            raise UsageError(
                f"data: expected names in UTF-8 in {self.name!r}, got {len(strange):,} that are not, such as "
                f"{strange[0]!r}; rename them (convmv renames whole folders)."
            )

    def dataset(
        self, split: str, views: Sequence[View], *, image_size: int | None, view_names: Sequence[str] | None = None
    ) -> Dataset:
        """Return one split, without the items whose images cannot be decoded.

        Where the source marks no test split, items that share content in a view are of one split: copies of a file, an
        image with several captions.

        Args:
            split: "train" or "test".
            views: the views of all items.
            image_size: side of the square that images become; default: the median shorter side of the training images.
            view_names: what the views are called; default: ``view0``, ``view1`` and so on.

        Raises:
            UsageError: the split is empty, or none of its images can be decoded.
        """
        digests = self._digests(views) if self.is_test is None else None
        chosen = self._positions(split, digests)
        encoded = [(view, self._having(number, chosen)) for number, view in enumerate(views) if not callable(view)]
        bad = unreadable(encoded, what=f"images of the {split} split") if encoded else {}
        good = np.array([position for position in chosen.tolist() if position not in bad], dtype=np.int64)
        training = chosen if split == "train" else self._positions("train", digests)
        stores = tuple(self._store(number, view, good, training, image_size) for number, view in enumerate(views))
        return Dataset(
            join_stores(stores),
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
            digests=None if digests is None else digests[torch.from_numpy(good)],
        )

    def _positions(self, split: str, digests: Tensor | None) -> Positions:
        """Return the positions of one split; items that share content are of one, given the digests of all."""
        groups = None
        if digests is not None:
            ids = content_ids(digests, None if self.present is None else torch.from_numpy(self.present))
            groups = content_groups(ids, max_group_size(self.length, self.test_fraction)).groups
        chosen = select_split(
            split,
            self.length,
            is_test=self.is_test,
            labels=self.labels,
            domains=self.domains,
            fraction=self.test_fraction,
            groups=groups,
        )
        check(
            len(chosen) > 0,
            f"data: {self.length} items in {self.name} are too few to hold some out; items that share content count as "
            "one.",
        )
        return chosen

    def _digests(self, views: Sequence[View]) -> Tensor | None:
        """Return the digests of all items in all views, int64 ``(n, views)``; None where a store has none."""
        columns = []
        for number, view in enumerate(views):
            everything = np.arange(self.length)
            if callable(view):
                digests = view(everything).digests
                if digests is None:
                    return None
                columns.append(digests[:, 0])
                continue
            having = self._having(number, everything)
            column = torch.zeros(self.length, dtype=torch.int64)
            column[torch.from_numpy(having)] = digest_encoded(view, having.tolist())
            columns.append(column)
        return torch.stack(columns, dim=1)

    def _having(self, number: int, positions: Positions) -> Positions:
        """Return those of some positions whose items have a view."""
        return positions if self.present is None else positions[self.present[positions, number]]

    def _store(
        self, number: int, view: View, positions: Positions, training: Positions, image_size: int | None
    ) -> Store:
        if callable(view):
            return view(positions)
        size = image_size or default_image_size(view, self._having(number, training).tolist())
        if self.present is not None and len(having := self._having(number, positions)) > 0:
            # An image that is there in place of each that is not: nobody will look at it, but it has to be readable.
            positions = np.where(self.present[positions, number], positions, having[0])
        return ImageStore(view.take(positions), size)


def _is_unicode(name: str) -> bool:
    """Return whether a name is Unicode: bytes that Python could not decode it keeps as halves of surrogate pairs."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)
