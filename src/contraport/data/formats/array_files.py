"""Arrays in files: `.npz` with named views, labels, domains and weights, and `.npy` with one view."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from contraport.data.arrays import as_array, from_arrays, take
from contraport.data.dataset import Dataset
from contraport.data.duplicate_groups import content_groups
from contraport.data.formats.format import data_format
from contraport.data.splits import Marks, count_held_out, max_group_size, select_split
from contraport.errors import UsageError, check, unknown_name_error, unreadable_error

_OF_ITEMS = ("labels", "domains", "weights", "numbers")
_KNOWN_KEYS = [name + suffix for name in ("x", "view0", "view1", "y", *_OF_ITEMS) for suffix in ("", "_test")]
_NUMBERED = re.compile(r"view\d+")
_KEY = re.compile(r"(x|view\d+|labels|y|domains|weights|numbers)(_test)?")


@data_format("arrays by name", suffixes=[".npz"])
def load_npz(path: str, split: str, test_fraction: float | None = None) -> Dataset:
    """Return one split of an `.npz` file.

    Its keys are ``x``, or for several views ``view0``, ``view1``, ... or two or more names of your own, which they
    then have; optionally ``labels`` (or ``y``), ``domains``, ``weights`` and ``numbers``. The same keys with ``_test``
    appended are the test split; without them `test_fraction` of each class is held out, a fifth by default.

    Raises:
        UsageError: the file is corrupt or pickled, has an unknown key, or its arrays do not fit together.
    """
    arrays = read_npz("data", path)
    return dataset_from_arrays(arrays, path, split, test_fraction)


def dataset_from_arrays(
    arrays: Mapping[str, Any], path: str, split: str, test_fraction: float | None = None
) -> Dataset:
    """Return one split of arrays by their names, which are those of the keys of an `.npz` file; see `load_npz`.

    Raises:
        UsageError: an unknown key, or arrays that do not fit together.
    """
    arrays = _checked(arrays, path)
    parts = [_part(arrays, path, suffix="")]
    if any(key.endswith("_test") for key in arrays):
        parts.append(_part(arrays, path, suffix="_test"))
    _check_parts_agree(parts, path)
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    known = {name: joined.pop(name, None) for name in _OF_ITEMS}
    views = tuple(joined.values()) if all(map(_KEY.fullmatch, joined)) else joined
    rows = [len(next(iter(part.values()))) for part in parts]
    is_test = np.arange(sum(rows)) >= rows[0] if len(parts) == 2 else None
    return _split_of(path, split, is_test, views, known, test_fraction)


@data_format("an array", suffixes=[".npy"])
def load_npy(path: str, split: str, test_fraction: float | None = None) -> Dataset:
    """Return one split of an `.npy` file, which holds one view without labels.

    `test_fraction` of its rows is held out, a fifth by default.

    Raises:
        UsageError: the file is corrupt or pickled, or no array of `from_arrays`.
    """
    return _split_of(path, split, None, (read_npy("data", path),), {}, test_fraction)


def read_npy(argument: str, path: str) -> np.ndarray:
    """Return the array in an `.npy` file.

    Raises:
        UsageError: the file is missing, corrupt or pickled, or an archive; the message names the argument.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # on hostile bytes the parsers raise whatever they like
        raise unreadable_error(f"{argument}: {path}", "an .npy array", error) from error
    good = isinstance(array, np.ndarray)
    check(good, f"{argument}: {path}: expected an array, got an archive of several; name it .npz.")
    return np.asarray(array)


def _split_of(
    path: str,
    split: str,
    is_test: Marks | None,
    views: tuple[np.ndarray, ...] | Mapping[str, np.ndarray],
    known: Mapping[str, np.ndarray | None],
    test_fraction: float | None,
) -> Dataset:
    try:
        whole = from_arrays(
            views,
            known.get("labels"),
            known.get("domains"),
            weights=known.get("weights"),
            numbers=known.get("numbers"),
            name=path,
        )
    except UsageError as error:
        raise UsageError(f"data: {path}: {error}") from error
    labels, domains = (None if codes is None else codes.numpy() for codes in (whole.labels, whole.domains))
    groups = None
    if is_test is None and whole.content_ids is not None:
        groups = content_groups(whole.content_ids, max_group_size(len(whole), test_fraction)).groups
    chosen = select_split(
        split, len(whole), is_test=is_test, labels=labels, domains=domains, fraction=test_fraction, groups=groups
    )
    return take(whole, chosen, split, held_out=count_held_out(split, len(whole), chosen) if is_test is None else None)


def read_npz(argument: str, path: str) -> dict[str, np.ndarray]:
    """Return the arrays in an `.npz` file by their keys.

    Raises:
        UsageError: the file is missing, corrupt or pickled; the message names the argument.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except Exception as error:  # on hostile bytes the parsers raise whatever they like
        raise unreadable_error(f"{argument}: {path}", "an .npz of plain arrays", error) from error


def _checked(given: Mapping[str, Any], path: str) -> dict[str, np.ndarray]:
    arrays = {
        key: array if type(array) in (np.ndarray, np.memmap) else as_array(f"data: {path}: {key}", array)
        for key, array in given.items()
    }
    own = len(_own_names(arrays)) > 1
    embedded = {"features", "rows", "splits"} <= set(arrays)
    check(
        not embedded,
        f"data: {path}: these are features that embed wrote, which neighbors, search, cluster and duplicates take; to "
        "train on their rows as vectors, write them by embed --out FILE.npy.",
    )
    for key, array in arrays.items():
        if not (own or _KEY.fullmatch(key)):
            raise unknown_name_error(f"data: {path}: key", key, _KNOWN_KEYS)
        good = isinstance(array, np.ndarray) and array.ndim > 0
        check(good, f"data: {path}: expected an array with a row for each item as {key!r}.")
    return arrays


def _own_names(arrays: Mapping[str, Any]) -> list[str]:
    """Return the names of views that are the caller's own; none where a view has one of ours."""
    names = dict.fromkeys(key.removesuffix("_test") for key in arrays)
    ours = any(name == "x" or _NUMBERED.fullmatch(name) for name in names)
    return [] if ours else [name for name in names if not _KEY.fullmatch(name)]


def _part(arrays: dict[str, np.ndarray], path: str, *, suffix: str) -> dict[str, np.ndarray]:
    """Return the arrays of one split by their plain names, the views in order."""
    names = {key.removesuffix("_test"): key for key in arrays if key.endswith("_test") == bool(suffix)}
    views = ["x"] if "x" in names else [f"view{number}" for number in range(len(names)) if f"view{number}" in names]
    views = views or [name for name in _own_names(arrays) if name in names]
    extra = [name for name in names if (name == "x" or name.startswith("view")) and name not in views]
    check(len(views) > 0, f"data: {path}: expected an array 'x{suffix}' or 'view0{suffix}', got {sorted(arrays)}.")
    check(not extra, f"data: {path}: expected either 'x' or 'view0', 'view1', ... without a gap, got {sorted(arrays)}.")
    check(not {"labels", "y"} <= names.keys(), f"data: {path}: expected 'labels' or 'y', got both.")
    part = {view: arrays[names[view]] for view in views}
    for name in ("y", *_OF_ITEMS):
        if name in names:
            part["labels" if name == "y" else name] = arrays[names[name]]
    rows = {key: len(array) for key, array in part.items()}
    check(len(set(rows.values())) == 1, f"data: {path}: expected equal numbers of rows, got {rows}.")
    return part


def _check_parts_agree(parts: list[dict[str, np.ndarray]], path: str) -> None:
    """Raise `UsageError` unless the splits hold the same arrays, of the same shapes and kinds."""
    described = [{key: (array.shape[1:], array.dtype.kind) for key, array in part.items()} for part in parts]
    check(
        all(described[0] == other for other in described),
        f"data: {path}: expected the same arrays, shapes and types in both splits, got {described}.",
    )
