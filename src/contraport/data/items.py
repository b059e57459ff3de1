"""The items of both splits of a source, and the one way to make a dataset of one split of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from contraport.data.dataset import Dataset
from contraport.data.decoding import EncodedImages, FileImages, ImageStore, common_size, unreadable
from contraport.data.shown import what_is_shown
from contraport.data.splits import Codes, Marks, Positions, count_held_out, items_of
from contraport.data.stores import Store, as_one
from contraport.data.text_store import Texts
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
    shown: np.ndarray | None = None  # what each shows in each view, (n, views), equal where it is the same
    together: Codes | None = None  # what is equal there is of one split, such as an image with several captions

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

    def positions(self, split: str) -> Positions:
        """Return the positions of one split."""
        first = which = np.arange(self.length)
        if self.together is not None and self.is_test is None:
            _, first, which = np.unique(self.together, return_index=True, return_inverse=True)
        drawn = items_of(
            split,
            len(first),
            is_test=self.is_test,
            labels=None if self.labels is None else self.labels[first],
            domains=None if self.domains is None else self.domains[first],
            fraction=self.test_fraction,
        )
        chosen = np.flatnonzero(np.isin(which, drawn))
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
        if len(views) > 1 and self.shown is None:
            return self._with_what_is_shown(views).dataset(split, views, image_size=image_size, view_names=view_names)
        chosen = self.positions(split)
        encoded = [(view, self._having(number, chosen)) for number, view in enumerate(views) if not callable(view)]
        bad = unreadable(encoded, what=f"images of the {split} split") if encoded else {}
        good = np.array([position for position in chosen.tolist() if position not in bad], dtype=np.int64)
        stores = tuple(self._store(number, view, good, image_size) for number, view in enumerate(views))
        return Dataset(
            as_one(stores),
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
            shown=None if self.shown is None else torch.from_numpy(self.shown[good]),
        )

    def _with_what_is_shown(self, views: Sequence[View]) -> Items:
        """Return the same, and what each item shows in each view: the same file, the same text, or the same row."""
        rows = range(self.length) if self.rows is None else self.rows.tolist()
        names: list[Sequence[Hashable]] = [
            view.files if isinstance(view, FileImages) else view.texts if isinstance(view, Texts) else rows
            for view in views
        ]
        shown = what_is_shown(names, self.present)
        of_files = [
            column
            for column, view in zip(shown.T, views, strict=True)
            if not isinstance(view, Texts) and len(np.unique(column)) < len(column)
        ]
        return replace(self, shown=shown, together=of_files[0] if of_files else None)

    def _having(self, number: int, positions: Positions) -> Positions:
        """Return those of some positions whose items have a view."""
        return positions if self.present is None else positions[self.present[positions, number]]

    def _store(self, number: int, view: View, positions: Positions, image_size: int | None) -> Store:
        if callable(view):
            return view(positions)
        size = image_size or common_size(view, self._having(number, self.positions("train")).tolist())
        if self.present is not None and len(having := self._having(number, positions)) > 0:
            # An image that is there in place of each that is not: nobody will look at it, but it has to be readable.
            positions = np.where(self.present[positions, number], positions, having[0])
        return ImageStore(view.take(positions), size)


def _is_unicode(name: str) -> bool:
    """Return whether a name is Unicode: bytes that Python could not decode it keeps as halves of surrogate pairs."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)
