"""Data that lies in memory: numpy or torch arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from contraport._utils.text_tensors import as_string_list, check_nonempty_texts, item_shape
from contraport.data.dataset import Dataset
from contraport.data.digests import digest_rows
from contraport.data.splits import Codes, Positions
from contraport.data.stores import Store, join_stores
from contraport.data.text_store import PackedTextStore
from contraport.errors import UsageError, check, check_all_values

Array: TypeAlias = np.ndarray | Tensor


@dataclass(frozen=True)
class ArrayStore:
    """Views held as tensors, texts too; a fetch indexes them."""

    views: tuple[Tensor, ...]
    in_memory: bool = True

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shape of one item of each view."""
        return tuple(map(item_shape, self.views))

    @cached_property
    def digests(self) -> Tensor:
        """Digests of the rows of each view, int64 ``(n, views)``."""
        return torch.stack([digest_rows(view) for view in self.views], dim=1)

    def __len__(self) -> int:
        return len(self.views[0])

    def fetch(self, positions: Tensor) -> tuple[Tensor, ...]:
        """Return the views at some positions, stacked."""
        return tuple([view[positions] for view in self.views])


def from_arrays(
    views: Array | list[Any] | tuple[ArrayLike | Tensor, ...] | Mapping[str, ArrayLike | Tensor],
    labels: ArrayLike | Tensor | None = None,
    domains: ArrayLike | Tensor | None = None,
    *,
    weights: ArrayLike | Tensor | None = None,
    numbers: ArrayLike | Tensor | None = None,
    name: str = "arrays",
    split: str = "train",
    flips: bool = False,
    argument: str = "views",
    present: ArrayLike | Tensor | None = None,
) -> Dataset:
    """Return a dataset of arrays.

    Args:
        views: one array, or a list of items of one shape; or several views of the same items, as a tuple of arrays or a
            dict of arrays by name, with a row for each item; they may differ in kind and shape. Images are ``(n,
            H, W, C)`` or ``(n, C, H, W)``: the smaller of the two outer axes holds the channels, of which there may be
            many, the first where they are equal; or, of 8 or 16 bits, ``(n, H, W)``. uint8 stands for [0, 1]; other
            numbers, such as the 16 bits of a scanner or a satellite, or floats, are taken as they come.
            Time series are floats, ``(n, C, T)``. Vectors are ``(n, d)``. Texts are a list or an array of
            strings, ``(n,)``.
        labels: the class of each item, integers or strings.
        domains: the domain of each item, integers or strings.
        weights: how much each item counts in a training, nonnegative numbers.
        numbers: a number of each item that is to be told from it, such as an age.
        name: what messages call the data.
        split: which split this is.
        flips: whether a horizontal flip keeps the meaning of an image.
        argument: what messages call the views.
        present: which items have which views, Booleans ``(n, views)``; default: of several views, an item lacks those
            whose whole row is NaN, or whose text is empty. What stands in place of a view that is lacking is not looked
            at.

    Raises:
        UsageError: a wrong shape or type, values that are not finite, texts that are empty, or unequal numbers of rows.

    >>> import numpy as np
    >>> from_arrays(["a red bag", "a blue shoe"]).shapes
    ((),)
    >>> two_sensors = from_arrays((np.ones((4, 3)), np.ones((4, 7))), labels=["cat", "dog", "dog", "cat"])
    >>> two_sensors.shapes, two_sensors.class_names, two_sensors.labels.tolist()
    (((3,), (7,)), ('cat', 'dog'), [0, 1, 1, 0])
    """
    if isinstance(views, tuple | Mapping):
        several = views.items() if isinstance(views, Mapping) else enumerate(views)
        given = {f"{argument}[{key!r}]": view for key, view in several}
    else:
        given = {argument: views}
    check(len(given) > 0, f"{argument}: expected at least one array, got none.")
    given = {place: _texts_or(place, view) for place, view in given.items()}
    if present is not None or len(given) > 1:
        given, present = _without_gaps(given, present)
    stores = [_store(place, view, whole=present is None) for place, view in given.items()]
    rows = [len(store) for store in stores]
    check(len(set(rows)) == 1, f"{argument}: expected equal numbers of rows, got {rows}.")
    label_codes, class_names = factorize_tensor("labels", labels)
    domain_codes, domain_names = factorize_tensor("domains", domains)
    return Dataset(
        join_stores(stores),
        name=name,
        split=split,
        labels=label_codes,
        domains=domain_codes,
        weights=None if weights is None else weights_of("weights", weights),
        numbers=None if numbers is None else parse_numbers("numbers", numbers),
        class_names=class_names,
        domain_names=domain_names,
        flips=flips,
        present=None if present is None else torch.from_numpy(present),
        view_names=[str(key) for key in views] if isinstance(views, Mapping) else None,
    )


def _texts_or(argument: str, values: Any) -> Any:
    """Return strings as an array of objects, ``(n,)``, and everything else as it is."""
    texts = as_string_list(argument, values)
    return values if texts is None else np.array(texts, dtype=np.object_)


def _is_texts(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.object_ and array.ndim == 1


def _store(argument: str, view: Any, *, whole: bool) -> Store:
    """Return a view's store; `whole` says whether all items have it."""
    if not _is_texts(view):
        return ArrayStore((as_view_tensor(argument, view),))
    if whole:
        check_nonempty_texts(argument, view)
    return PackedTextStore.of(view, argument)


def _without_gaps(
    views: Mapping[str, Any], present: ArrayLike | Tensor | None
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return the views with zeros where an item lacks one, and which items have which; None where all have all."""
    known = {place: view for place, view in views.items() if not isinstance(view, list)}
    arrays = {place: view if _is_texts(view) else _array(place, view) for place, view in known.items()}
    if len(arrays) < len(views) or len({len(array) for array in arrays.values() if array.ndim}) != 1:
        check(present is None, "present: expected arrays with equal numbers of rows.")
        return dict(views), None
    if present is None:
        marks = np.stack([~_nothing(array) for array in arrays.values()], axis=1)
    else:
        marks, shape = _array("present", present), (len(next(iter(arrays.values()))), len(arrays))
        good = marks.dtype == np.bool_ and marks.shape == shape
        check(good, f"present: expected Booleans, one per item and view, {shape}, got {marks.dtype} of {marks.shape}.")
    if marks.all():
        return dict(views), None
    filled = {place: array.copy() for place, array in arrays.items()}
    for array, there in zip(filled.values(), marks.T, strict=True):
        array[~there] = "" if _is_texts(array) else 0
    return filled, marks


def _nothing(array: np.ndarray) -> np.ndarray:
    """Return which rows are NaN throughout, or empty texts."""
    if _is_texts(array):
        return np.array([not text.strip() for text in array], dtype=np.bool_)
    if array.dtype.kind != "f" or array.ndim < 2 or array.size == 0:
        return np.zeros(len(array), dtype=np.bool_)
    marks: np.ndarray = np.isnan(array.reshape(len(array), -1)).all(axis=1)
    return marks


def take(dataset: Dataset, positions: Positions, split: str, *, held_out: int | None = None) -> Dataset:
    """Return the items of an in-memory dataset at some positions, as one of its splits; see `Dataset` for the rest."""
    store = ArrayStore(dataset.__getitems__(positions.tolist()).views)
    return dataset.at(torch.from_numpy(positions), store, split=split, held_out=held_out)


def check_equal_shapes(argument: str, items: Sequence[Any]) -> None:
    """Raise `UsageError` unless the items of a list are of one shape.

    >>> check_equal_shapes("X", [np.ones((3, 20)), np.ones((3, 30))])
    Traceback (most recent call last):
    contraport.errors.UsageError: X: a list is one item after the other, and these are of 2 shapes: (3, 20), (3, 30);...
    """
    shapes = list(dict.fromkeys(map(_shape, items)))
    shown = ", ".join(map(str, shapes[:3])) + (", ..." if len(shapes) > 3 else "")
    check(
        len(shapes) <= 1,
        f"{argument}: a list is one item after the other, and these are of {len(shapes)} shapes: {shown}; cut or pad "
        "them to one, or, if they are views of the same items, give them as a tuple or as a dict by name.",
    )


def _shape(item: Any) -> tuple[int, ...] | str:
    try:
        return tuple(np.shape(item))
    except ValueError:
        return "one that is ragged itself"


def as_view_tensor(argument: str, values: ArrayLike | Tensor) -> Tensor:
    """Return rows of images, time series or vectors as a view's tensor, a copy; see `from_arrays` for the shapes.

    Raises:
        UsageError: a wrong shape or type, or values that are not finite.
    """
    if isinstance(values, list):
        check_equal_shapes(argument, values)
        values = np.stack([_array(argument, item) for item in values]) if values else np.empty(0)
    array = _array(argument, values)
    check(array.ndim >= 2 and array.size > 0, f"{argument}: expected rows of items, got shape {array.shape}.")
    if array.ndim == 2:
        return torch.from_numpy(_floats(argument, array))
    is_float = array.dtype.kind == "f"
    check(array.ndim <= 4, f"{argument}: expected at most (n, C, H, W), got {array.dtype} of shape {array.shape}.")
    check(
        is_float or (array.dtype.kind in "iu" and (array.ndim == 4 or array.dtype.itemsize <= 2)),
        f"{argument}: expected vectors (n, d), float series (n, C, T), or images, (n, H, W, C) or (n, C, H, W), or of "
        f"8 or 16 bits (n, H, W); got {array.dtype} of shape {array.shape}.",
    )
    if array.ndim == 3 and not is_float:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] < array.shape[1]:
        array = np.moveaxis(array, 3, 1)
    if array.dtype == np.uint8:
        return torch.from_numpy(np.array(array, order="C"))  # a copy: the caller's changes do not reach it
    return torch.from_numpy(_floats(argument, array))


def parse_numbers(argument: str, values: ArrayLike | Tensor) -> Tensor:
    """Return one finite number per item, float32 `(n,)`.

    Raises:
        UsageError: the values are not one real number per item, or not finite.

    >>> parse_numbers("numbers", [1, 2.5])
    tensor([1.0000, 2.5000])
    """
    array = _array(argument, values)
    good = array.ndim == 1 and array.dtype.kind in "iufb"
    check(good, f"{argument}: expected one number per item, got {array.dtype} of shape {array.shape}.")
    return torch.from_numpy(_floats(argument, array))


def _floats(argument: str, array: np.ndarray) -> np.ndarray:
    """Return a copy as float32."""
    check(
        array.dtype.kind in "iufb",
        f"{argument}: expected real numbers, got {array.dtype}.",
    )
    with np.errstate(over="ignore"):  # what overflows is told below
        floats = np.array(array, dtype=np.float32, order="C")
    finite = np.isfinite(floats.reshape(len(floats), -1)).all(axis=1)
    found = "NaN or infinity" if finite.all() or not np.isfinite(array).all() else "some beyond single precision"
    check(
        bool(finite.all()),
        f"{argument}: expected finite numbers, got {found} in {np.sum(~finite)} of {len(floats)} rows, "
        f"first in row {np.argmin(finite)}; leave these rows out, or fill them in.",
    )
    return floats


def factorize(argument: str, values: ArrayLike | Tensor) -> tuple[Codes, tuple[str, ...]]:
    """Return the values as numbers 0, 1, ... and the name of each number.

    Raises:
        UsageError: the values are not one integer, truth value or string per item.

    >>> factorize("labels", ["dog", "cat", "dog"])
    (array([1, 0, 1]), ('cat', 'dog'))
    """
    array = _strings_or(argument, values)
    check(
        array.ndim == 1 and array.dtype.kind in "iubU",
        f"{argument}: expected one integer or string per item, got {array.dtype} of shape {array.shape}; "
        "numbers that are to be told of items are given as numbers.",
    )
    names, codes = np.unique(array, return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, names))


def _strings_or(argument: str, values: Any) -> np.ndarray:
    """Return strings, which other libraries keep as objects, as an array of strings, and all else as an array."""
    if isinstance(values, Tensor) or (array := np.asarray(values)).dtype.kind not in "OT" or array.ndim != 1:
        return _array(argument, values)
    own = array.tolist()
    kind = str if not own or isinstance(own[0], str) else int
    wrong = next((row for row, value in enumerate(own) if not isinstance(value, kind)), None)
    told = f"{argument}: expected one integer or string per item, got {own[wrong or 0]!r} in row {wrong}."
    check(wrong is None, told)
    return np.array(own)


def factorize_tensor(argument: str, values: ArrayLike | Tensor | None) -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Return what `factorize` does as a tensor, and nothing for values that are not given."""
    if values is None:
        return None, None
    codes, names = factorize(argument, values)
    return torch.from_numpy(codes), names


def weights_of(argument: str, values: ArrayLike | Tensor) -> Tensor:
    """Return how much each item counts, float32 (n,).

    Raises:
        UsageError: the values are not one nonnegative finite number per item, or all are zero.

    >>> weights_of("weights", [1, 0.5, 0])
    tensor([1.0000, 0.5000, 0.0000])
    """
    weights = parse_numbers(argument, values)
    check_all_values(argument, weights, weights >= 0, "numbers from 0 on")
    check(bool((weights > 0).any()), f"{argument}: expected numbers that are not all zero.")
    return weights


def as_array(argument: str, values: ArrayLike | Tensor) -> np.ndarray:
    """Return an array, a tensor or what becomes one as an array; bfloat16, which NumPy does not know, as float32.

    Raises:
        UsageError: it becomes none, or some of its values are masked.

    >>> as_array("data", torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(values))
        told = f"{argument}: expected an array without masked values, got {masked} of {values.size} masked"
        check(masked == 0, f"{told}; leave their rows out, or fill them in.")
    try:
        if not isinstance(values, Tensor):
            return np.asarray(values)
        values = values.detach().cpu()
        found: np.ndarray = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{argument}: expected an array, got {type(values).__name__}: {error}") from error
    return found


def _array(argument: str, values: ArrayLike | Tensor) -> np.ndarray:
    array = as_array(argument, values)
    check(array.dtype != object, f"{argument}: expected an array of numbers, got one of Python objects.")
    return array
