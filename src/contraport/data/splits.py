"""Which items are held out where a source has no test split of its own."""

from __future__ import annotations

import numpy as np

from contraport.errors import check

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]


def check_split(split: str) -> None:
    """Raise `UsageError` unless the split is "train" or "test"."""
    check(split in ("train", "test"), f"split: expected 'train' or 'test', got {split!r}.")


def split_positions(classes: np.ndarray, split: str, *, every: int) -> Positions:
    """Return the positions of one split, in order: every k-th item of each class, drawn at random, is held out.

    The split depends on nothing but the classes, and holds out ``1 / every`` of each class to within one item.

    >>> split_positions(np.array([0] * 10 + [1] * 10), "test", every=5).tolist()
    [2, 5, 16, 17]
    """
    shuffled = np.random.default_rng(0).permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    held_out = np.zeros(len(classes), dtype=bool)
    held_out[by_class[every // 2 :: every]] = True
    return np.flatnonzero(held_out if split == "test" else ~held_out)
