"""Which items are held out: those that a source marks as its test split, or else a fixed share of each class."""

from __future__ import annotations

import numpy as np

from contraport.errors import check
from contraport.seeding import generator

HELD_OUT = 0.2
TEST_NAMES = ("test", "val", "valid", "validation")
"""What sources call the split that is held out; where there are several the first that is found counts."""

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
Codes = np.ndarray[tuple[int], np.dtype[np.int64]]
Marks = np.ndarray[tuple[int], np.dtype[np.bool_]]


def check_split(split: str) -> None:
    """Raise `UsageError` unless the split is "train" or "test"."""
    check(split in ("train", "test"), f"split: expected 'train' or 'test', got {split!r}.")


def check_fraction(test_fraction: float | None) -> None:
    """Raise `UsageError` unless the share of the items to be held out is None or a number from 0 to less than 1."""
    good = test_fraction is None or (isinstance(test_fraction, int | float) and 0 <= test_fraction < 1)
    check(
        good, f"test_fraction: expected a number from 0, which holds out none, to less than 1, got {test_fraction!r}."
    )


def split_positions(
    classes: np.ndarray, split: str, *, fraction: float = HELD_OUT, purpose: str = "data.split"
) -> Positions:
    """Return the positions of one split, in order: a share of the items of each class, drawn at random, is held out.

    The split depends on nothing but the classes and the share, and holds out that of each class to within one item.

    >>> split_positions(np.array([0] * 10 + [1] * 10), "test", fraction=0.2).tolist()
    [2, 5, 16, 17]
    """
    shuffled = generator(purpose).permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    held_out = np.zeros(len(classes), dtype=bool)
    passed = np.ceil(np.arange(len(classes) + 1) * fraction - 0.5)  # how many of the first so many are held out
    held_out[by_class[np.diff(passed) > 0]] = True
    return np.flatnonzero(held_out if split == "test" else ~held_out)


def select_split(
    split: str,
    length: int,
    *,
    is_test: Marks | None,
    labels: Codes | None,
    domains: Codes | None = None,
    fraction: float | None = None,
    groups: Codes | None = None,
) -> Positions:
    """Return the positions of one split: the items marked so, or else a share of each class of each domain held out.

    Args:
        split: "train" or "test".
        length: number of items.
        is_test: which items the source marks as its test split; None if it marks none.
        labels: class of each item.
        domains: domain of each item.
        fraction: share that is held out; default: `HELD_OUT`.
        groups: numbers of groups of items that stay in one split, ``0..g-1``; a group counts as one item, of the class
            of its first. One of more items than are to be held out is trained on. Default: each item by itself.

    Raises:
        UsageError: a share is given where items are marked, or the test split of data of which none is held out.

    >>> select_split("test", 4, is_test=np.array([False, True, True, False]), labels=None).tolist()
    [1, 2]
    """
    if is_test is not None:
        check(fraction is None, f"test_fraction: the data have a test split of their own, got {fraction}.")
        return np.flatnonzero(is_test if split == "test" else ~is_test)
    none = split == "test" and fraction == 0
    check(not none, "data: there are no test items, as test_fraction is 0; expected a share that is held out.")
    classes = np.zeros(length, dtype=np.int64) if labels is None else labels
    if domains is not None:
        classes = classes * (domains.max() + 1) + domains
    share = HELD_OUT if fraction is None else fraction
    if groups is None:
        return split_positions(classes, split, fraction=share)
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    small = np.flatnonzero(sizes <= max_group_size(length, fraction))
    held_out = small[split_positions(classes[first[small]], "test", fraction=share)]
    return np.flatnonzero(np.isin(groups, held_out) == (split == "test"))


def max_group_size(length: int, fraction: float | None) -> float:
    """Return how many items a group may have to be held out."""
    return max((HELD_OUT if fraction is None else fraction) * length, 2.0)


def count_held_out(split: str, length: int, chosen: Positions) -> int:
    """Return how many items were drawn to be held out, where `select_split` gave these positions of one split."""
    return len(chosen) if split == "test" else length - len(chosen)


def split_masks(names: np.ndarray, where: str) -> tuple[Marks | None, Marks]:
    """Return which items are the test split's, or None where no split but "train" is named, and which are of neither.

    Where a source has both a test and a validation split, the test split is taken and the other belongs to neither.

    Raises:
        UsageError: a name that is no split's, or no training item.
    """
    lower = np.char.lower(names.astype(str))
    known = np.isin(lower, ("train", *TEST_NAMES))
    check(
        bool(known.all()),
        f"data: {where}: expected 'train' or one of {TEST_NAMES} as split, got {names[~known][:1].tolist()}.",
    )
    check(bool((lower == "train").any()), f"data: {where}: expected items of the split 'train', found none.")
    chosen = next((name for name in TEST_NAMES if name in lower), None)
    if chosen is None:
        return None, np.zeros(len(lower), dtype=bool)
    return lower == chosen, (lower != "train") & (lower != chosen)
