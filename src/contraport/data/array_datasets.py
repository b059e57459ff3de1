"""Datasets from NumPy arrays, tensors and lists in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from contraport._utils.formatting import pluralize
from contraport._utils.text_bytes import check_nonblank_texts, texts_or_none_if_no_strings
from contraport.data.dataset import Dataset
from contraport.data.splits import Codes, PositionArray
from contraport.data.stores import MAPPED_BLOCK_BYTES, ArrayStore, MemmapRowStore, PackedTextStore, Store, combine_views
from contraport.errors import UsageError, check, check_all_values

_log = logging.getLogger(__name__)

ArrayLikeOrTensor: TypeAlias = ArrayLike | Tensor
"""Anything that NumPy converts to an array, or a tensor."""


def from_arrays(
    views: np.ndarray | Tensor | list[Any] | tuple[ArrayLikeOrTensor, ...] | Mapping[str, ArrayLikeOrTensor],
    labels: ArrayLikeOrTensor | None = None,
    domains: ArrayLikeOrTensor | None = None,
    *,
    weights: ArrayLikeOrTensor | None = None,
    numbers: ArrayLikeOrTensor | None = None,
    name: str = "arrays",
    split: str = "train",
    flips: bool = False,
    argument: str = "views",
    present: ArrayLikeOrTensor | None = None,
    copy: bool = True,
) -> Dataset:
    """Build a dataset from arrays.

    Args:
        views: one array, or a list of items of one shape; or several views of the same items, as a tuple of arrays or
            a dict of arrays by name, with one row per item. Views may differ in kind and shape. Images are ``(n, H, W,
            C)`` or ``(n, C, H, W)``: the smaller of the two outer axes is the channel axis, the first if they are
            equal; or, with 8 or 16 bits, ``(n, H, W)``. uint8 stands for [0, 1]; other numbers, such as 16-bit scans
            or floats, keep their values. Time series are floats, ``(n, C, T)``. Vectors are ``(n, d)``. Texts are a
            list or an array of strings, ``(n,)``.
        labels: class of each item, integers or strings.
        domains: domain of each item, integers or strings.
        weights: training weight of each item, nonnegative.
        numbers: regression target of each item, such as an age.
        name: name of the data, for messages.
        split: the split that the items are.
        flips: whether a horizontal flip preserves the meaning of an image.
        argument: name of the views in messages.
        present: which items have which views, Booleans ``(n, views)``; default: with several views, an item lacks
            those whose whole row is NaN or whose text is empty. The values of a missing view are ignored.
        copy: whether the views are copied; otherwise later changes of float32 and uint8 arrays reach the dataset.
            Arrays that are memory-mapped for reading are never copied.

    Raises:
        UsageError: a wrong shape or type, values that are not finite, empty texts, or unequal numbers of rows.

    >>> import numpy as np
    >>> from_arrays(["a red bag", "a blue shoe"]).shapes
    ((),)
    >>> two_sensors = from_arrays((np.ones((4, 3)), np.ones((4, 7))), labels=["cat", "dog", "dog", "cat"])
    >>> two_sensors.shapes, two_sensors.class_names, two_sensors.labels.tolist()
    (((3,), (7,)), ('cat', 'dog'), [0, 1, 1, 0])
    """
    if isinstance(views, tuple | Mapping):
        pairs = views.items() if isinstance(views, Mapping) else enumerate(views)
        by_place = {f"{argument}[{key!r}]": view for key, view in pairs}
    else:
        by_place = {argument: views}
    check(len(by_place) > 0, f"{argument}: must have at least one array, got none.", "empty")
    arrays: dict[str, Any] = {}
    for place, view in by_place.items():
        texts = texts_or_none_if_no_strings(place, view)
        if texts is not None:
            arrays[place] = np.array(texts, dtype=np.object_)
        else:  # a list, such as of images, is stacked when its store is built
            arrays[place] = view if isinstance(view, list) else _as_non_object_array(place, view)
    if present is not None or len(arrays) > 1:
        present = _check_or_infer_present_mask(list(arrays.values()), present)
    absent: Iterable[np.ndarray | None] = [None] * len(arrays) if present is None else ~present.T
    stores = [
        _build_view_store(place, view, absent=missing, copy=copy)
        for (place, view), missing in zip(arrays.items(), absent, strict=True)
    ]
    for place, view in arrays.items():
        if isinstance(view, np.ndarray):
            warn_of_float32_rounding(name if len(arrays) == 1 else f"{name}: {place}", extremes_if_float32_rounds(view))
    rows = [len(store) for store in stores]
    check(len(set(rows)) == 1, f"{argument}: the views must have equal numbers of rows, got {rows}.", "rows")
    label_codes, class_names = factorize_to_tensor("labels", labels)
    domain_codes, domain_names = factorize_to_tensor("domains", domains)
    return Dataset(
        combine_views(stores),
        name=name,
        split=split,
        labels=label_codes,
        domains=domain_codes,
        weights=None if weights is None else as_weight_per_item("weights", weights),
        regression_targets=None if numbers is None else as_number_per_item("numbers", numbers),
        class_names=class_names,
        domain_names=domain_names,
        allows_flips=flips,
        present=None if present is None else torch.from_numpy(present),
        view_names=tuple(map(str, views)) if isinstance(views, Mapping) else (),
    )


def _is_object_vector(array: Any) -> bool:
    """Return whether an array is one-dimensional and holds Python objects, such as texts."""
    return isinstance(array, np.ndarray) and array.dtype == np.object_ and array.ndim == 1


def _build_view_store(argument: str, view: Any, *, absent: np.ndarray | None, copy: bool) -> Store:
    """Build the store of one view.

    Memory-mapped read-only arrays stay in their files, other views in memory. Rows marked in `absent` become zeros or
    empty texts. None: every item has the view, so a text must not be empty.
    """
    if isinstance(view, np.memmap) and view.mode == "r" and view.flags.c_contiguous:
        _check_view_shape_and_dtype(argument, view)
        store = MemmapRowStore(view, partial(_items_to_channels_first_tensor, copy=False), absent)
        if view.dtype.kind == "f":
            _check_finite(argument, ((raw, floats.numpy()) for raw, floats in store.iterate_raw_and_converted_blocks()))
        return store
    if absent is not None:
        view, copy = view.copy(), False
        view[absent] = "" if _is_object_vector(view) else 0
    if not _is_object_vector(view):
        return ArrayStore((as_view_tensor(argument, view, copy=copy),))
    if absent is None:
        check_nonblank_texts(argument, view)
    return PackedTextStore.from_texts(view, argument)


def _check_or_infer_present_mask(views: list[Any], present: ArrayLikeOrTensor | None) -> np.ndarray | None:
    """Return the mask ``(n, views)`` of present views, or None if all are present.

    Without a given mask an item lacks a view whose row is an empty text, or has only NaN.
    """
    arrays = [view for view in views if not isinstance(view, list)]
    if len(arrays) < len(views) or not all(array.ndim for array in arrays) or len(set(map(len, arrays))) != 1:
        check(present is None, "present: requires arrays with equal numbers of rows.", "conflict")
        return None
    if present is None:
        missing = []
        for array in arrays:
            if _is_object_vector(array):
                missing.append(np.array([not text.strip() for text in array], dtype=np.bool_))
            elif array.dtype.kind != "f" or array.ndim < 2 or array.size == 0:
                missing.append(np.zeros(len(array), dtype=np.bool_))
            else:
                blocks = (array[rows] for rows in _iterate_row_slices(array))
                missing.append(
                    np.concatenate([np.isnan(block.reshape(len(block), -1)).all(axis=1) for block in blocks])
                )
        mask = ~np.stack(missing, axis=1)
    else:
        mask, shape = _as_non_object_array("present", present), (len(arrays[0]), len(arrays))
        good = mask.dtype == np.bool_ and mask.shape == shape
        check(good, f"present: must be Booleans of shape {shape}, got {mask.dtype} of {mask.shape}.", "shape")
    return None if mask.all() else mask


def _iterate_row_slices(array: np.ndarray) -> Iterator[slice]:
    """Yield row slices of at most about `MAPPED_BLOCK_BYTES` bytes each."""
    rows = max(1, MAPPED_BLOCK_BYTES * len(array) // array.nbytes)
    for first in range(0, len(array), rows):
        yield slice(first, first + rows)


def copy_subset_to_memory(dataset: Dataset, positions: PositionArray, new_split: str) -> Dataset:
    """Copy the items at given positions to memory, as a dataset with a new split name."""
    store = ArrayStore(dataset.__getitems__(positions.tolist()).views)
    return dataset.subset(torch.from_numpy(positions), new_split, subset_store=store)


def check_equal_shapes(argument: str, items: Sequence[Any]) -> None:
    """Raise `UsageError` unless all items of a list have the same shape.

    >>> check_equal_shapes("X", [np.ones((3, 20)), np.ones((3, 30))])
    Traceback (most recent call last):
    contraport.errors.UsageError: X: the items of a list must have one shape, got 2: (3, 20), (3, 30); cut or pad ...
    """
    shapes: list[str] = []
    for item in items:
        try:
            shape = str(tuple(np.shape(item)))
        except ValueError:  # rows of unequal lengths
            shape = "a ragged one"
        if shape not in shapes:
            shapes.append(shape)
    shown = ", ".join(shapes[:3]) + (", ..." if len(shapes) > 3 else "")
    message = f"{argument}: the items of a list must have one shape, got {len(shapes)}: {shown}; cut or pad them. "
    check(len(shapes) <= 1, message + "Views of the same items are given as a tuple or as a dict by name.", "shape")


def as_view_tensor(argument: str, values: ArrayLikeOrTensor, *, copy: bool = True) -> Tensor:
    """Check images, time series or vectors, and convert them to the tensor of a view.

    The accepted shapes are those of `from_arrays`. Image channels are moved first.

    Raises:
        UsageError: a wrong shape or type, or values that are not finite.
    """
    if isinstance(values, list):
        check_equal_shapes(argument, values)
        values = np.stack([_as_non_object_array(argument, item) for item in values]) if values else np.empty(0)
    array = _as_non_object_array(argument, values)
    _check_view_shape_and_dtype(argument, array)
    tensor = _items_to_channels_first_tensor(array, copy=copy)
    if tensor.dtype != torch.uint8:
        floats = tensor.numpy()
        _check_finite(argument, ((array[rows], floats[rows]) for rows in _iterate_row_slices(array)))
    return tensor


def _check_view_shape_and_dtype(argument: str, array: np.ndarray) -> None:
    """Raise `UsageError` unless an array has the shape and type of a view."""
    is_float, kind = array.dtype.kind == "f", f"{array.dtype} of shape {array.shape}"
    good = array.ndim >= 2 and array.size > 0
    reshape = f"; reshape it to ({len(array)}, 1) if each number is an item" if array.ndim == 1 and array.size else ""
    expected = "must be a nonempty array (n, d), (n, C, T) or (n, C, H, W)"
    check(good, f"{argument}: {expected}, got shape {array.shape}{reshape}.", "shape")
    if array.ndim == 2:
        check(array.dtype.kind in "iufb", f"{argument}: must be real numbers, got {array.dtype}.", "not_numeric")
    else:
        good = array.ndim <= 4 and (
            is_float or (array.dtype.kind in "iu" and (array.ndim == 4 or array.dtype.itemsize <= 2))
        )
        shapes = "vectors (n, d), float series (n, C, T), images (n, H, W, C) or (n, C, H, W), or 8 or 16 bit (n, H, W)"
        check(good, f"{argument}: must be {shapes}; got {kind}.", "shape")


def _items_to_channels_first_tensor(items: np.ndarray, *, copy: bool) -> Tensor:
    """Convert an array to a uint8 or float32 tensor, moving image channels first."""
    array, is_image = items, items.ndim > 2
    if array.ndim == 3 and array.dtype.kind != "f":
        array = array[:, None]
    elif array.ndim == 4 and array.shape[3] < array.shape[1]:
        array = np.moveaxis(array, 3, 1)
    dtype = np.uint8 if is_image and array.dtype == np.uint8 else np.float32
    with np.errstate(over="ignore"):  # overflow is reported by `_check_finite`
        if copy:
            return torch.from_numpy(np.array(array, dtype, order="C"))
        return torch.from_numpy(np.require(array, dtype, ["C_CONTIGUOUS", "WRITEABLE"]))  # as torch requires


def as_number_per_item(argument: str, values: ArrayLikeOrTensor) -> Tensor:
    """Convert one number per item to a float32 tensor ``(n,)``.

    Raises:
        UsageError: the values are not one real number per item, or not finite.

    >>> as_number_per_item("numbers", [1, 2.5])
    tensor([1.0000, 2.5000])
    """
    array = _as_non_object_array(argument, values)
    good = array.ndim == 1 and array.dtype.kind in "iufb"
    check(good, f"{argument}: must be one number per item, got {array.dtype} of shape {array.shape}.", "shape")
    with np.errstate(over="ignore"):  # overflow is reported below
        floats = np.array(array, np.float32, order="C")
    _check_finite(argument, [(array, floats)])
    return torch.from_numpy(floats)


def as_weight_per_item(argument: str, values: ArrayLikeOrTensor) -> Tensor:
    """Convert one nonnegative weight per item to a float32 tensor ``(n,)``.

    Raises:
        UsageError: the values are not one nonnegative finite number per item, or all are zero.

    >>> as_weight_per_item("weights", [1, 0.5, 0])
    tensor([1.0000, 0.5000, 0.0000])
    """
    weights = as_number_per_item(argument, values)
    check_all_values(argument, weights, weights >= 0, "nonnegative numbers")
    check(bool((weights > 0).any()), f"{argument}: must not all be zero.", "all_zero")
    return weights


def _check_finite(argument: str, original_and_float32_blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Raise `UsageError` if a number is NaN, infinite, or too large for float32.

    Each pair of blocks holds the same rows before and after the conversion to float32.
    """
    masks, is_given_finite = [], True
    for array, floats in original_and_float32_blocks:
        masks.append(np.isfinite(floats.reshape(len(floats), -1)).all(axis=1))
        is_given_finite &= bool(masks[-1].all() or np.isfinite(array).all())
    finite = np.concatenate(masks)
    problem = "numbers beyond single precision" if is_given_finite else "NaN or infinity"
    where = f"{problem} in {np.sum(~finite)} of {len(finite)} rows, first in row {np.argmin(finite)}"
    message = f"{argument}: must be finite, got {where}; leave these rows out, or fill them in."
    check(bool(finite.all()), message, "overflow" if is_given_finite else "not_finite")


def extremes_if_float32_rounds(values: np.ndarray) -> list[np.ndarray]:
    """Return the minima and maxima per feature, or [] if float32 holds the type exactly."""
    if values.dtype.kind not in "iuf" or np.can_cast(values.dtype, np.float32):
        return []
    others = (0, *range(2, values.ndim))
    return [bound.reduce(values, axis=others).astype(np.float64) for bound in (np.fmin, np.fmax)]


def warn_of_float32_rounding(data_name: str, extremes: list[np.ndarray], column_names: Sequence[str] = ()) -> None:
    """Warn of features whose spread is too small for float32 relative to their magnitude."""
    if extremes:
        low, high = np.min(extremes, axis=0), np.max(extremes, axis=0)
        largest = np.maximum(np.abs(low), np.abs(high))
        # Below 200 steps of float32, rounding is about 1% of the standard deviation; 1e-12 is the rounding of float64.
        near = (high - low < 200 * np.spacing(largest.astype(np.float32))) & (high - low > 1e-12 * largest)
        if near.any():
            names = column_names if len(column_names) == len(low) else range(len(low))
            _warn_once_of_rounding(data_name, tuple([names[i] for i in np.flatnonzero(near).tolist()]), low.tobytes())


@lru_cache
def _warn_once_of_rounding(data_name: str, column_names: tuple[Any, ...], _content: bytes) -> None:
    """Log the warning once for all splits of the same data."""
    message = "%s: rounding to float32 changes %s of small spread: %s; subtract the minimum first"
    _log.warning(message, data_name, pluralize(len(column_names), "column"), list(column_names[:10]))


def factorize(argument: str, values: ArrayLikeOrTensor) -> tuple[Codes, tuple[str, ...]]:
    """Return an integer code for each value, and the distinct values as text.

    Raises:
        UsageError: the values are not one integer, Boolean or string per item.

    >>> factorize("labels", ["dog", "cat", "dog"])
    (array([1, 0, 1]), ('cat', 'dog'))
    """
    if isinstance(values, Tensor) or (array := np.asarray(values)).dtype.kind not in "OT" or array.ndim != 1:
        array = _as_non_object_array(argument, values)
    else:  # strings that another library stores as objects
        items = array.tolist()
        kind = str if not items or isinstance(items[0], str) else int
        wrong = next((row for row, value in enumerate(items) if not isinstance(value, kind)), None)
        message = f"{argument}: must be one integer or string per item, got {items[wrong or 0]!r} in row {wrong}."
        check(wrong is None, message, "not_categorical")
        array = np.array(items)
    message = f"{argument}: must be one integer or string per item, got {array.dtype} of shape {array.shape}"
    good = array.ndim == 1 and array.dtype.kind in "iubU"
    check(good, f"{message}; targets of a regression are given as numbers.", "not_categorical")
    names, codes = np.unique(array, return_inverse=True)
    return codes.astype(np.int64), tuple(map(str, names))


def factorize_to_tensor(
    argument: str, values: ArrayLikeOrTensor | None
) -> tuple[Tensor, tuple[str, ...]] | tuple[None, None]:
    """Encode values like `factorize`, but with the codes as a tensor."""
    if values is None:
        return None, None
    codes, names = factorize(argument, values)
    return torch.from_numpy(codes), names


def as_array(argument: str, values: ArrayLikeOrTensor) -> np.ndarray:
    """Convert an array-like or a tensor to a NumPy array.

    NumPy lacks bfloat16, which becomes float32.

    Raises:
        UsageError: the values cannot be converted, or some are masked.

    >>> as_array("data", torch.ones(2, dtype=torch.bfloat16, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(values))
        message = f"{argument}: must have no masked values, got {masked} of {values.size} masked"
        check(masked == 0, f"{message}; leave their rows out, or fill them in.", "masked")
    try:
        if not isinstance(values, Tensor):
            return values if isinstance(values, np.memmap) else np.asarray(values)
        values = values.detach().cpu()
        array: np.ndarray = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).split(". ")[0].removesuffix(".")  # NumPy's first sentence
        raise UsageError(f"{argument}: must be an array, got {type(values).__name__}: {reason}.") from error
    return array


def as_finite_float64(argument: str, value: Any, dimensions: str = "(n, d)") -> Tensor:
    """Convert an array-like of finite numbers to a double-precision tensor.

    Args:
        argument: name of the argument, for errors.
        value: the numbers.
        dimensions: the expected shape, with a letter for each dimension; "..." stands for any number of them.

    Raises:
        UsageError: not numbers, none, NaN or infinity among them, or a wrong number of dimensions.

    >>> as_finite_float64("X", [[1, 2]])
    tensor([[1., 2.]], dtype=torch.float64)
    """
    try:
        array = as_array(argument, value) if isinstance(value, np.ma.MaskedArray) else value
        if not isinstance(array, Tensor):
            # torch has neither other byte orders nor long doubles, and cannot share the memory of read-only arrays and
            # of negative strides: those are copied.
            array = np.asarray(array)
            kind = np.float64 if array.dtype.kind in "iuf" else array.dtype
            array = np.require(array, kind, ["C", "W"])
        tensor = torch.as_tensor(array).detach()
        wrong = int((~torch.isfinite(tensor)).sum())  # fails on the device meta, which has no values
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{argument}: must be numbers of shape {dimensions}, got {type(value).__name__}.", kind="not_numbers"
        ) from error
    least = dimensions.count(",") + 1 - dimensions.count("...")
    good = tensor.ndim >= least if "..." in dimensions else tensor.ndim == least
    check(good and tensor.numel() > 0, f"{argument}: must have shape {dimensions}, got {tuple(tensor.shape)}.", "shape")
    check(not tensor.is_complex(), f"{argument}: must be real numbers, got {tensor.dtype}.", "not_numbers")
    check(wrong == 0, f"{argument}: must be finite, got NaN or infinity in {wrong} entries.", "not_finite")
    return tensor.double()


def _as_non_object_array(argument: str, values: ArrayLikeOrTensor) -> np.ndarray:
    """Convert values to an array, and refuse arrays of Python objects."""
    array = as_array(argument, values)
    check(array.dtype != object, f"{argument}: must be an array of numbers, got Python objects.", "not_numeric")
    return array
