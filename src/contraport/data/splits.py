"""Training and test splits, defined by the source or drawn at random."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

from contraport._utils.formatting import pluralize
from contraport.errors import check
from contraport.seeding import numpy_generator

DEFAULT_TEST_FRACTION = 0.2
"""Default fraction of each class that is held out for the test split."""
TEST_SPLIT_NAMES = ("test", "val", "valid", "validation")
"""Names of the test split in sources; if there are several, the first in this order is used."""

_log = logging.getLogger(__name__)

PositionArray = np.ndarray[tuple[int], np.dtype[np.int64]]
"""Indices of items, int64."""
Codes = np.ndarray[tuple[int], np.dtype[np.int64]]
"""One integer per item, such as a class or a group, int64."""


def draw_stratified_split(
    classes: np.ndarray, split: str, *, test_fraction: float = DEFAULT_TEST_FRACTION, purpose: str = "data.split"
) -> PositionArray:
    """Return the sorted positions of one split, drawn at random within classes.

    The split depends only on the classes and the fraction. The number held out of each class is exact to within one.

    >>> draw_stratified_split(np.array([0] * 10 + [1] * 10), "test", test_fraction=0.2).tolist()
    [2, 5, 16, 17]
    """
    shuffled = numpy_generator(purpose).permutation(len(classes))
    by_class = shuffled[np.argsort(classes[shuffled], kind="stable")]
    held_out = np.zeros(len(classes), dtype=bool)
    # Number held out among the first k items of `by_class`; rounding this total keeps each class within one item.
    cumulative = np.ceil(np.arange(len(classes) + 1) * test_fraction - 0.5)
    held_out[by_class[np.diff(cumulative) > 0]] = True
    return np.flatnonzero(held_out if split == "test" else ~held_out)


def select_split_positions(
    split: str,
    length: int,
    *,
    is_test: NDArray[np.bool_] | None,
    labels: Codes | None,
    domains: Codes | None = None,
    test_fraction: float | None = None,
    groups: Codes | None = None,
) -> PositionArray:
    """Return one split's item positions, defined by the source or drawn at random.

    Args:
        split: "train" or "test".
        length: number of items.
        is_test: mask of the items that the source assigns to its test split; None if it has no test split.
        labels: class of each item.
        domains: domain of each item.
        test_fraction: fraction to hold out; default: `DEFAULT_TEST_FRACTION`.
        groups: group of each item, ``0..g-1``; the items of a group stay in one split. A group counts as one item, of
            the class of its first. A group larger than the number to hold out is in the training split. Default: each
            item by itself.

    Raises:
        UsageError: a fraction is given for marked items, or the test split is requested and the fraction is 0.

    >>> select_split_positions("test", 4, is_test=np.array([False, True, True, False]), labels=None).tolist()
    [1, 2]
    """
    if is_test is not None:
        message = f"test_fraction: must not be given, as the data have their own test split; got {test_fraction}."
        check(test_fraction is None, message, "conflict")
        return np.flatnonzero(is_test if split == "test" else ~is_test)
    check(split != "test" or test_fraction != 0, "data: has no test items, as test_fraction is 0.", "no_test_split")
    classes = np.zeros(length, dtype=np.int64) if labels is None else labels
    if domains is not None:
        classes = classes * (domains.max() + 1) + domains
    fraction = DEFAULT_TEST_FRACTION if test_fraction is None else test_fraction
    if groups is None:
        return draw_stratified_split(classes, split, test_fraction=fraction)
    _, first, sizes = np.unique(groups, return_index=True, return_counts=True)
    small = np.flatnonzero(sizes <= max_held_out_group_size(length, fraction))
    held_out = small[draw_stratified_split(classes[first[small]], "test", test_fraction=fraction)]
    return np.flatnonzero(np.isin(groups, held_out) == (split == "test"))


def max_held_out_group_size(length: int, test_fraction: float = DEFAULT_TEST_FRACTION) -> float:
    """Return the largest group size that a random split may hold out."""
    return max(test_fraction * length, 2.0)


def get_test_and_unused_masks(
    split_names: np.ndarray, source_name: str, *, loaded_split: str = "train"
) -> tuple[NDArray[np.bool_] | None, NDArray[np.bool_]]:
    """Return two masks: test items, and items that are neither for training nor for tests.

    The former is None if only "train" occurs. If a source has both a test and a validation split, the validation split
    is unused; the log has the number of its items if the loaded split is "train".

    Raises:
        UsageError: a name is not that of a split, or there is no training item.
    """
    lower = np.char.lower(split_names.astype(str))
    valid = np.isin(lower, ("train", *TEST_SPLIT_NAMES))
    got = split_names[~valid][:1].tolist()
    message = f"data: {source_name}: splits must be 'train' or one of {TEST_SPLIT_NAMES}, got {got}."
    check(bool(valid.all()), message, "unknown_split")
    check("train" in lower, f"data: {source_name}: must have items of the split 'train', got none.", "no_train_split")
    test_name = next((name for name in TEST_SPLIT_NAMES if name in lower), None)
    if test_name is None:
        return None, np.zeros(len(lower), dtype=bool)
    is_unused = (lower != "train") & (lower != test_name)
    if is_unused.any() and loaded_split == "train":
        names, rows = sorted({*split_names[is_unused].tolist()}), pluralize(int(is_unused.sum()), "row")
        _log.info("%s: %s of the splits %s are not used; the test split is %r", source_name, rows, names, test_name)
    return lower == test_name, is_unused
