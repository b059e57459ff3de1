"""Content digests of a run's training and held-out items, and dataset fingerprints."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contraport.data.dataset import Dataset
from contraport.data.duplicate_groups import assign_content_ids_by_view, group_by_shared_content
from contraport.data.splits import max_held_out_group_size
from contraport.data.streams import Stream


def fingerprint_dataset(dataset: Dataset) -> str:
    """Return a digest of all items in order, with labels, domains and weights.

    It is the same on every machine. The content of items that may differ at each fetch, as those of a torch dataset,
    is left out.

    >>> from contraport.data import load
    >>> train = fingerprint_dataset(load("digits"))
    >>> train == fingerprint_dataset(load("digits")), train == fingerprint_dataset(load("digits", "test"))
    (True, False)
    """
    digest = hashlib.sha256(repr((len(dataset), dataset.shapes)).encode())
    for values in (dataset.labels, dataset.domains, dataset.weights, dataset.present, dataset.view_content_digests):
        digest.update(b"none" if values is None else values.contiguous().numpy().tobytes())
    return digest.hexdigest()


class RecoveredSplits(NamedTuple):
    """Splits of a run, recovered from its data by the saved digests of their items."""

    train: Dataset
    test: Dataset
    num_other_items: int


@dataclass(frozen=True)
class SplitDigests:
    """Content digests of a run's training and held-out items.

    Attributes:
        train_digests: unique sorted digests of the training items, over those views whose contents tell items apart,
            int64; empty if items may differ at each fetch.
        test_digests: digests of the held-out items; empty if none were held out.
        train_fingerprint: fingerprint of the training items; see `fingerprint_dataset`.
    """

    train_digests: NDArray[np.int64]
    test_digests: NDArray[np.int64]
    train_fingerprint: str

    @classmethod
    def from_datasets_unless_stream(cls, train: Dataset, test: Dataset | None) -> Self | None:
        """Return the digests of both splits, or None for a stream."""
        if isinstance(train, Stream):
            return None
        train_fingerprint = fingerprint_dataset(train)
        none = np.empty(0, dtype=np.int64)
        if train.view_content_digests is None:
            return cls(none, none, train_fingerprint)
        parts = [train] if test is None or test.view_content_digests is None else [train, test]
        digests = torch.cat([part.view_content_digests for part in parts if part.view_content_digests is not None])
        present = torch.cat([_present_view_mask(part) for part in parts])
        # A view that many items share, such as captions that name a class, does not identify an item.
        views = group_by_shared_content(
            assign_content_ids_by_view(digests, present), max_held_out_group_size(len(digests))
        ).used_view_indices
        if not present[:, list(views)].any(dim=1).all():
            views = tuple(range(digests.shape[1]))  # some items have only views that many share
        masked = digests[:, list(views)], present[:, list(views)]
        by_part = zip(*(tensor.split(list(map(len, parts))) for tensor in masked), strict=True)
        train_digests, *test_digests = (np.unique(values[mask].numpy()) for values, mask in by_part)
        return cls(train_digests, test_digests[0] if test_digests else none, train_fingerprint)

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Restore the digests from the saved arrays that `to_arrays` returned.

        Raises:
            ValueError: an array is missing.
        """
        missing = [name for name in ("train", "test", "fingerprint") if name not in arrays]
        if missing:
            raise ValueError(f"it lacks {', '.join(missing)}")
        return cls(arrays["train"], arrays["test"], str(arrays["fingerprint"]))

    @property
    def digest_of_both_splits(self) -> str:
        """Hexadecimal SHA-256 over both splits' digests and the dataset fingerprint."""
        parts = self.train_digests.tobytes(), self.test_digests.tobytes(), self.train_fingerprint.encode()
        return hashlib.sha256(b"|".join(parts)).hexdigest()

    def to_arrays(self) -> dict[str, Any]:
        """Return the digests as named arrays, to be saved."""
        return {"train": self.train_digests, "test": self.test_digests, "fingerprint": np.array(self.train_fingerprint)}

    def training_overlap_mask(self, dataset: Dataset) -> Tensor:
        """Return a mask of the items that share a view with training items, ``(n,)``."""
        return _any_view_match_mask(dataset, self.train_digests)

    def matches_splits(self, train: Dataset, test: Dataset) -> bool:
        """Return whether two datasets are exactly the splits of the run."""
        return all(
            bool(_any_view_match_mask(part, digests).all()) and _are_all_digests_in(digests, [part])
            for part, digests in ((train, self.train_digests), (test, self.test_digests))
        )

    def find_splits(self, datasets: Sequence[Dataset]) -> RecoveredSplits | None:
        """Recover the run's train and test items from datasets by content digest.

        Args:
            datasets: all items of the source, in one dataset or two.

        Returns:
            None if an item of the run is missing.
        """
        if not (_are_all_digests_in(self.train_digests, datasets) and _are_all_digests_in(self.test_digests, datasets)):
            return None
        chosen = {}
        for split, digests in (("train", self.train_digests), ("test", self.test_digests)):
            masks = [_any_view_match_mask(part, digests) for part in datasets]
            part, mask = max(zip(datasets, masks, strict=True), key=lambda pair: int(pair[1].sum()))
            chosen[split] = part.subset(mask.nonzero()[:, 0], split)
        others = sum(len(part) for part in datasets) - sum(map(len, chosen.values()))
        return RecoveredSplits(chosen["train"], chosen["test"], others)


def _present_view_mask(dataset: Dataset) -> Tensor:
    """Return a mask of present views, all True if none is missing, ``(n, views)``."""
    if dataset.present is None:
        return torch.ones(len(dataset), len(dataset.shapes), dtype=torch.bool)
    return dataset.present


def _any_view_match_mask(dataset: Dataset, digests: NDArray[np.int64]) -> Tensor:
    """Return a mask of the items with a view whose digest is in `digests`."""
    if dataset.view_content_digests is None:
        return torch.zeros(len(dataset), dtype=torch.bool)
    shared = torch.from_numpy(np.isin(dataset.view_content_digests.numpy(), digests)) & _present_view_mask(dataset)
    return shared.any(dim=1)


def _are_all_digests_in(digests: NDArray[np.int64], datasets: Sequence[Dataset]) -> bool:
    """Return whether each of the given view digests occurs in at least one of the datasets."""
    existing = [
        one.view_content_digests[_present_view_mask(one)].numpy()
        for one in datasets
        if one.view_content_digests is not None
    ]
    return bool(np.isin(digests, np.concatenate(existing)).all()) if existing else len(digests) == 0
