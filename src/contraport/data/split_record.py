"""Fingerprints of a dataset, and the record of which items a run was trained on and which it held out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport.data.dataset import Dataset
from contraport.data.duplicate_groups import content_groups, content_ids
from contraport.data.splits import max_group_size
from contraport.data.streams import Stream

Digests = NDArray[np.int64]


def fingerprint(dataset: Dataset) -> str | None:
    """Return a digest of all items in their order, with their classes, domains and weights; None of a stream.

    It is the same on every machine. Of items that are made anew at each fetch, as by a torch dataset, the content is
    left out.

    >>> from contraport.data import load
    >>> digits = load("digits")
    >>> fingerprint(digits) == fingerprint(load("digits")), fingerprint(digits) == fingerprint(load("digits", "test"))
    (True, False)
    """
    if isinstance(dataset, Stream):
        return None
    digest = hashlib.sha256(repr((len(dataset), dataset.shapes)).encode())
    for values in (dataset.labels, dataset.domains, dataset.weights, dataset.present, dataset.digests):
        digest.update(b"none" if values is None else values.contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class SplitRecord:
    """The items that a run was trained on and those that it held out, by their content.

    Attributes:
        train: digests of the training items, in the views that tell items apart, unique and sorted, int64; empty where
            items are made anew at each fetch.
        test: those of the held-out items; none where nothing was held out.
        fingerprint: of the training items; see `fingerprint`.
    """

    train: Digests
    test: Digests
    fingerprint: str

    @classmethod
    def of(cls, train: Dataset, test: Dataset | None) -> SplitRecord | None:
        """Return the record of a split, without digests where items are made anew at each fetch; None of a stream."""
        own = fingerprint(train)
        if own is None:
            return None
        if train.digests is None:
            return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), own)
        parts = [train] if test is None or test.digests is None else [train, test]
        digests = torch.cat([part.digests for part in parts if part.digests is not None])
        present = torch.cat([_present(part) for part in parts])
        # A view that many items share, such as captions that name a class, does not tell whether an item was seen.
        views = content_groups(content_ids(digests, present), max_group_size(len(digests), None)).views
        if not present[:, list(views)].any(dim=1).all():
            views = tuple(range(digests.shape[1]))  # some items have only views that many share
        train_digests, *test_digests = (_unique(part, views) for part in parts)
        return cls(train_digests, test_digests[0] if test_digests else np.empty(0, dtype=np.int64), own)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> SplitRecord:
        """Return the record of what `arrays` gave.

        Raises:
            ValueError: an array is missing.
        """
        missing = [name for name in ("train", "test", "fingerprint") if name not in arrays]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return cls(arrays["train"], arrays["test"], str(arrays["fingerprint"]))

    @property
    def digest(self) -> str:
        """A digest of the whole record, hexadecimal."""
        parts = self.train.tobytes(), self.test.tobytes(), self.fingerprint.encode()
        return hashlib.sha256(b"|".join(parts)).hexdigest()

    def arrays(self) -> dict[str, Any]:
        """Return the record as arrays by name, for a file."""
        return {"train": self.train, "test": self.test, "fingerprint": np.array(self.fingerprint)}

    def trained_on(self, dataset: Dataset) -> Tensor:
        """Return which items share content with one that was trained on, Booleans ``(n,)``."""
        return _share(dataset, self.train)

    def holds(self, train: Dataset, test: Dataset) -> bool:
        """Return whether two splits are those of the run: all of its items, and no other."""
        return all(
            bool(_share(part, digests).all()) and _covers([part], digests)
            for part, digests in ((train, self.train), (test, self.test))
        )

    def divide(self, parts: Sequence[Dataset]) -> tuple[Dataset, Dataset, int] | None:
        """Return the training and the held-out items of the run among those of some parts, and how many others are.

        Args:
            parts: all items of a source, in one part or two.

        Returns:
            None where an item of the run is missing.
        """
        if not (_covers(parts, self.train) and _covers(parts, self.test)):
            return None
        chosen = {}
        for split, digests in (("train", self.train), ("test", self.test)):
            masks = [_share(part, digests) for part in parts]
            part, mask = max(zip(parts, masks, strict=True), key=lambda pair: int(pair[1].sum()))
            chosen[split] = part.only(mask.nonzero()[:, 0], split)
        others = sum(len(part) for part in parts) - sum(map(len, chosen.values()))
        return chosen["train"], chosen["test"], others


def _present(dataset: Dataset) -> Tensor:
    if dataset.present is None:
        return torch.ones(len(dataset), len(dataset.shapes), dtype=torch.bool)
    return dataset.present


def _unique(dataset: Dataset, views: Sequence[int]) -> Digests:
    """Return the digests of the items in some views, those that are there."""
    assert dataset.digests is not None
    columns, there = dataset.digests[:, list(views)], _present(dataset)[:, list(views)]
    return np.unique(columns[there].numpy())


def _share(dataset: Dataset, digests: Digests) -> Tensor:
    """Return which items have content of these digests in any view."""
    if dataset.digests is None:
        return torch.zeros(len(dataset), dtype=torch.bool)
    shared = torch.from_numpy(np.isin(dataset.digests.numpy(), digests)) & _present(dataset)
    return shared.any(dim=1)


def _covers(parts: Sequence[Dataset], digests: Digests) -> bool:
    """Return whether each digest is that of an item of these parts."""
    there = [part.digests[_present(part)].numpy() for part in parts if part.digests is not None]
    return bool(np.isin(digests, np.concatenate(there)).all()) if there else len(digests) == 0
