"""Formats of `.npz` files with named arrays and `.npy` files of one view."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from contraport._utils.files import read_npy_array, read_npz_arrays
from contraport.data.array_datasets import as_array, from_arrays
from contraport.data.dataset import Dataset
from contraport.data.duplicate_groups import group_by_shared_content
from contraport.data.formats import data_format
from contraport.data.splits import DEFAULT_TEST_FRACTION, max_held_out_group_size, select_split_positions
from contraport.errors import UsageError, check, format_value, suggest_names, translate_read_errors, unknown_name_error

_PER_ITEM_KEYS = ("labels", "domains", "weights", "numbers")
"""Keys of arrays with one value per item."""
_FIXED_MEANING_KEY_PATTERN = re.compile(r"(x|view\d+|labels|y|domains|weights|numbers)(_test)?")
"""Keys with a fixed meaning; if views have names of their own, other keys are views."""


@data_format("arrays", suffixes=[".npz", ".npy"])
def load_array_file(path: str, split: str, test_fraction: float | None = None) -> Dataset:
    """Load one split from an `.npz` or `.npy` file.

    An `.npy` file is one view without labels. Arrays of an `.npy` file, and large arrays of an `.npz` file that is not
    compressed, are memory-mapped.

    Keys: ``x``, or for several views ``view0``, ``view1``, ... or two or more other names, which become their names;
    optionally ``labels`` (or ``y``), ``domains``, ``weights`` and ``numbers``. The same keys with ``_test`` appended
    are the test split.
    """
    is_archive = Path(path).suffix == ".npz"
    arrays = read_npz("data", path, mapped=True) if is_archive else {"x": read_npy("data", path, mmap_mode="r")}
    return dataset_from_arrays(arrays, path, split, test_fraction, owns_arrays=True)


def dataset_from_arrays(
    arrays: Mapping[str, Any], path: str, split: str, test_fraction: float | None = None, *, owns_arrays: bool = False
) -> Dataset:
    """Build one split from a dict of arrays, as in an `.npz` file.

    The keys are those of `load_array_file`. If the dataset owns the arrays, they are only copied to free the items of
    the other split.

    Raises:
        UsageError: an unknown key, or arrays that do not match.
    """
    checked = _convert_and_check_arrays(arrays, path)
    parts = [_select_and_check_split_arrays(checked, path, key_suffix="")]
    if any(key.endswith("_test") for key in checked):
        parts.append(_select_and_check_split_arrays(checked, path, key_suffix="_test"))
    described = [{key: (array.shape[1:], array.dtype.kind) for key, array in part.items()} for part in parts]
    message = f"data: {path}: must have the same arrays, shapes and types in both splits, got {described}."
    check(described[0] == described[-1], message, "splits_differ")
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if len(parts) > 1 else parts[0]
    per_item: dict[str, Any] = {name: joined[name] for name in _PER_ITEM_KEYS if name in joined}
    views = {name: array for name, array in joined.items() if name not in per_item}
    try:
        # Names such as "x" and "view0" are not names of views: a tuple of arrays numbers them.
        named = tuple(views.values()) if all(map(_FIXED_MEANING_KEY_PATTERN.fullmatch, views)) else views
        whole = from_arrays(named, **per_item, name=path, copy=False)
    except UsageError as error:
        message = str(error)
        for place, name in zip(range(len(views)) if isinstance(named, tuple) else views, views, strict=True):
            message = message.replace(f"views[{place!r}]: ", "" if name == "x" else f"{name}: ")
        raise UsageError(f"data: {path}: {message}", kind=error.code.rpartition(".")[2]) from error
    labels, domains = (None if codes is None else codes.numpy() for codes in (whole.labels, whole.domains))
    is_test, groups = None, None
    if len(parts) == 2:
        is_test = np.arange(len(whole)) >= len(next(iter(parts[0].values())))
    elif whole.view_content_ids_if_repeated is not None:
        fraction = DEFAULT_TEST_FRACTION if test_fraction is None else test_fraction
        largest = max_held_out_group_size(len(whole), fraction)
        groups = group_by_shared_content(whole.view_content_ids_if_repeated, largest).group_ids
    chosen = select_split_positions(
        split, len(whole), is_test=is_test, labels=labels, domains=domains, test_fraction=test_fraction, groups=groups
    )
    keeps_all = owns_arrays and len(chosen) == len(whole)
    copied = None if keeps_all else whole.store.subset(chosen)
    dataset = whole.subset(torch.from_numpy(chosen), split, subset_store=copied)
    if is_test is None:
        dataset.num_random_test_items = len(chosen) if split == "test" else len(whole) - len(chosen)
    return dataset


def read_npy(argument: str, path: str, mmap_mode: Literal["r"] | None = None) -> np.ndarray:
    """Return the array in an `.npy` file without unpickling, memory-mapped on request.

    Raises:
        UsageError: the file is missing, corrupt or pickled, or an archive; the message names the argument.
    """
    message = f"{argument}: {path} must be a single array, got an archive of several; name it .npz."
    check(not zipfile.is_zipfile(path), message, "archive")
    with translate_read_errors(f"{argument}: {path}", ".npy"):
        return read_npy_array(path, mmap_mode)


def read_npz(argument: str, path: str, *, mapped: bool = False) -> dict[str, np.ndarray]:
    """Return the arrays in an `.npz` file by key, memory-mapped if `mapped`.

    Raises:
        UsageError: the file is missing, corrupt or pickled; the message names the argument.
    """
    with translate_read_errors(f"{argument}: {path}", ".npz"):
        return read_npz_arrays(path, mapped=mapped)


def _convert_and_check_arrays(arrays: Mapping[str, Any], path: str) -> dict[str, np.ndarray]:
    """Convert the values of an `.npz` file to arrays, and refuse unknown keys.

    Features that `contraport embed` wrote also raise an error.
    """
    checked = {
        key: array if type(array) in (np.ndarray, np.memmap) else as_array(f"data: {path}: {key}", array)
        for key, array in arrays.items()
    }
    message = f"data: {path} contains features of contraport embed; neighbors, search, cluster and duplicates take it. "
    message += "To train on the features, write them by contraport embed RUN --out FILE.npy."
    check(not {"features", "rows", "splits"} <= set(checked), message, "features_file")
    named = len(_list_custom_view_names(checked)) > 1
    for key, array in checked.items():
        if not (named or _FIXED_MEANING_KEY_PATTERN.fullmatch(key)):
            names = ("x", "view0", "view1", "y", *_PER_ITEM_KEYS)
            valid_keys = [name + suffix for name in names for suffix in ("", "_test")]
            listed = [*names, *suggest_names(key, valid_keys)]  # few enough for the message
            raise unknown_name_error(f"data: {path}", key, listed, noun="array")
        good = isinstance(array, np.ndarray) and array.ndim > 0
        place = path if key == "x" else f"{path}: {key}"
        check(good, f"data: {place} must be an array with one row per item, got {format_value(array)}.", "shape")
    return checked


def _list_custom_view_names(arrays: Mapping[str, Any]) -> list[str]:
    """Return the view names if the user chose them, else an empty list."""
    names = dict.fromkeys(key.removesuffix("_test") for key in arrays)
    if any(re.fullmatch(r"x|view\d+", name) for name in names):
        return []
    return [name for name in names if not _FIXED_MEANING_KEY_PATTERN.fullmatch(name)]


def _select_and_check_split_arrays(
    arrays: dict[str, np.ndarray], path: str, *, key_suffix: Literal["", "_test"]
) -> dict[str, np.ndarray]:
    """Return the arrays of one split, keyed by their names without `_test`."""
    names = {key.removesuffix("_test"): key for key in arrays if key.endswith("_test") == bool(key_suffix)}
    views = ["x"] if "x" in names else [f"view{number}" for number in range(len(names)) if f"view{number}" in names]
    views = views or [name for name in _list_custom_view_names(arrays) if name in names]
    extra = [name for name in names if (name == "x" or name.startswith("view")) and name not in views]
    message = f"data: {path}: must have an array x{key_suffix}, view0{key_suffix} or two or more with names of your "
    message += f"own, got {', '.join(sorted(arrays)) or 'none'}."
    check(len(views) > 0, message, "no_view")
    message = f"data: {path}: must have either x or view0, view1, ... without a gap, got {', '.join(sorted(arrays))}."
    check(not extra, message, "view_keys")
    check(not {"labels", "y"} <= names.keys(), f"data: {path}: must have 'labels' or 'y', got both.", "conflict")
    part = {view: arrays[names[view]] for view in views}
    for name in ("y", *_PER_ITEM_KEYS):
        if name in names:
            part["labels" if name == "y" else name] = arrays[names[name]]
    rows = {key: len(array) for key, array in part.items()}
    counts = ", ".join(f"{count} in {key}" for key, count in rows.items())
    message = f"data: {path}: its arrays must have equal numbers of rows, got {counts}."
    check(len(set(rows.values())) == 1, message, "rows")
    return part
