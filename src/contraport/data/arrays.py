"""Data that lies in memory: numpy or torch arrays, and `.npz` files of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from contraport.data.dataset import Dataset
from contraport.data.splits import Positions, split_positions
from contraport.errors import UsageError, check, unknown_name

HELD_OUT_EVERY = 5
_KNOWN_KEYS = [name + suffix for name in ("x", "view0", "view1", "labels", "y", "domains") for suffix in ("", "_test")]
_KEY = re.compile(r"(x|view\d+|labels|y|domains)(_test)?")

Array: TypeAlias = np.ndarray | Tensor


@dataclass(frozen=True)
class ArrayStore:
    """Views held as tensors; a fetch indexes them."""

    views: tuple[Tensor, ...]
    in_memory: bool = True

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return tuple(tuple(view.shape[1:]) for view in self.views)

    def __len__(self) -> int:
        return len(self.views[0])

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""
        return tuple(view[positions] for view in self.views)


def from_arrays(
    views: Array | Sequence[Array],
    labels: ArrayLike | Tensor | None = None,
    domains: ArrayLike | Tensor | None = None,
    *,
    name: str = "arrays",
    split: str = "train",
    flips: bool = False,
) -> Dataset:
    """Return a dataset of arrays.

    Args:
        views: one array, or a list or tuple of arrays with a row for each item. Images are uint8, ``(n, H, W)``,
            ``(n, H, W, C)`` or ``(n, C, H, W)``: the smaller of the two outer axes holds the channels, the first where
            they are equal. Vectors are ``(n, d)``.
        labels: the class of each item, integers or strings.
        domains: the domain of each item, integers or strings.
        name: what messages call the data.
        split: which split this is.
        flips: whether a horizontal flip keeps the meaning of an image.

    Raises:
        UsageError: a wrong shape or type, values that are not finite, or unequal numbers of rows.

    >>> import numpy as np
    >>> two_sensors = from_arrays([np.ones((4, 3)), np.ones((4, 7))], labels=["cat", "dog", "dog", "cat"])
    >>> two_sensors.shapes, two_sensors.class_names, two_sensors.labels.tolist()
    (((3,), (7,)), ('cat', 'dog'), [0, 1, 1, 0])
    """
    given = [views] if isinstance(views, Array) else list(views)
    check(len(given) > 0, "views: expected at least one array, got none.")
    tensors = tuple(_view(f"views[{number}]", view) for number, view in enumerate(given))
    rows = [len(view) for view in tensors]
    check(len(set(rows)) == 1, f"views: expected equal numbers of rows, got {rows}.")
    label_codes, class_names = (None, None) if labels is None else _codes("labels", labels)
    domain_codes = None if domains is None else _codes("domains", domains)[0]
    return Dataset(
        ArrayStore(tensors),
        name=name,
        split=split,
        labels=label_codes,
        domains=domain_codes,
        class_names=class_names,
        flips=flips,
    )


def load_npz(path: Path, split: str) -> Dataset:
    """Return one split of an `.npz` file.

    Its keys are ``x``, or ``view0``, ``view1``, ... for several views; optionally ``labels`` (or ``y``) and
    ``domains``. The same keys with ``_test`` appended are the test split; without them a fifth of each class is held
    out.

    Raises:
        UsageError: the file is corrupt or pickled, has an unknown key, or its arrays do not fit together.
    """
    arrays = _read_npz(path)
    parts = [_part(arrays, path, suffix="")]
    if any(key.endswith("_test") for key in arrays):
        parts.append(_part(arrays, path, suffix="_test"))
    _check_parts_agree(parts, path)
    joined = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    labels, domains = joined.pop("labels", None), joined.pop("domains", None)
    try:
        whole = from_arrays(list(joined.values()), labels, domains, name=str(path))
    except UsageError as error:
        raise UsageError(f"data: {path}: {error}") from error
    first_test = len(next(iter(parts[0].values())))
    if len(parts) == 2:
        positions = np.arange(first_test) if split == "train" else np.arange(first_test, len(whole))
    else:
        classes = np.zeros(len(whole)) if whole.labels is None else whole.labels.numpy()
        positions = split_positions(classes, split, every=HELD_OUT_EVERY)
    return take(whole, positions, split)


def take(dataset: Dataset, positions: Positions, split: str) -> Dataset:
    """Return the items of an in-memory dataset at some positions, as one of its splits."""
    batch = dataset.__getitems__(positions.tolist())
    return Dataset(
        ArrayStore(batch.views),
        name=dataset.name,
        split=split,
        labels=batch.labels,
        domains=batch.domains,
        class_names=dataset.class_names,
        flips=dataset.flips,
    )


def _view(argument: str, values: Array) -> Tensor:
    array = _array(argument, values)
    check(array.ndim >= 2 and array.size > 0, f"{argument}: expected rows of items, got shape {array.shape}.")
    if array.ndim == 2:
        return _vectors(argument, array)
    check(
        array.ndim <= 4 and array.dtype == np.uint8,
        f"{argument}: expected vectors (n, d), or uint8 images (n, H, W), (n, H, W, C) or (n, C, H, W); "
        f"got {array.dtype} of shape {array.shape}.",
    )
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[3] < array.shape[1]:
        array = np.moveaxis(array, 3, 1)
    return torch.from_numpy(np.array(array, order="C"))  # a copy: later changes of the caller's array do not reach it


def _vectors(argument: str, array: np.ndarray) -> Tensor:
    check(
        np.issubdtype(array.dtype, np.number) and not np.issubdtype(array.dtype, np.complexfloating),
        f"{argument}: expected real numbers, got {array.dtype}.",
    )
    with np.errstate(over="ignore"):  # what overflows is told below, as infinite
        vectors = array.astype(np.float32)
    finite = np.isfinite(vectors).all(axis=1)
    check(
        bool(finite.all()),
        f"{argument}: expected finite numbers, got NaN or infinity in {np.sum(~finite)} of {len(vectors)} rows, "
        f"first in row {np.argmin(finite)}.",
    )
    return torch.from_numpy(vectors)


def _codes(argument: str, values: ArrayLike | Tensor) -> tuple[Tensor, tuple[str, ...]]:
    """Return the values as numbers 0, 1, ... and the name of each number."""
    array = _array(argument, values)
    check(
        array.ndim == 1 and array.dtype.kind in "iuU",
        f"{argument}: expected one integer or string per item, got {array.dtype} of shape {array.shape}.",
    )
    names, codes = np.unique(array, return_inverse=True)
    return torch.from_numpy(codes.astype(np.int64)), tuple(str(name) for name in names)


def _array(argument: str, values: ArrayLike | Tensor) -> np.ndarray:
    try:
        array: np.ndarray = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{argument}: expected an array, got {type(values).__name__}: {error}") from error
    check(array.dtype != object, f"{argument}: expected an array of numbers, got one of Python objects.")
    return array


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:  # on hostile bytes the parsers raise whatever they like
        reason = " ".join(str(error).split())
        raise UsageError(f"data: {path} cannot be read as an .npz of plain arrays: {reason}") from error
    for key, array in arrays.items():
        if not _KEY.fullmatch(key):
            raise unknown_name(f"data: {path}: key", key, _KNOWN_KEYS)
        good = isinstance(array, np.ndarray) and array.ndim > 0
        check(good, f"data: {path}: expected an array with a row for each item as {key!r}.")
    return arrays


def _part(arrays: dict[str, np.ndarray], path: Path, *, suffix: str) -> dict[str, np.ndarray]:
    """Return the arrays of one split by their plain names, the views in order."""
    names = {key.removesuffix("_test"): key for key in arrays if key.endswith("_test") == bool(suffix)}
    views = ["x"] if "x" in names else [f"view{number}" for number in range(len(names)) if f"view{number}" in names]
    extra = [name for name in names if (name == "x" or name.startswith("view")) and name not in views]
    check(len(views) > 0, f"data: {path}: expected an array 'x{suffix}' or 'view0{suffix}', got {sorted(arrays)}.")
    check(not extra, f"data: {path}: expected either 'x' or 'view0', 'view1', ... without a gap, got {sorted(arrays)}.")
    check(not {"labels", "y"} <= names.keys(), f"data: {path}: expected 'labels' or 'y', got both.")
    part = {view: arrays[names[view]] for view in views}
    for name in ("labels", "y", "domains"):
        if name in names:
            part["labels" if name == "y" else name] = arrays[names[name]]
    rows = {key: len(array) for key, array in part.items()}
    check(len(set(rows.values())) == 1, f"data: {path}: expected equal numbers of rows, got {rows}.")
    return part


def _check_parts_agree(parts: list[dict[str, np.ndarray]], path: Path) -> None:
    """Raise `UsageError` unless the splits hold the same arrays, of the same shapes and kinds."""
    described = [{key: (array.shape[1:], array.dtype.kind) for key, array in part.items()} for part in parts]
    check(
        all(described[0] == other for other in described),
        f"data: {path}: expected the same arrays, shapes and types in both splits, got {described}.",
    )
