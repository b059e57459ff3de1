"""Reading of arrays with one row per training item: teacher features, and matrices between items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from contraport.data import Batch
from contraport.data.formats.array_files import read_npy, read_npz
from contraport.errors import UsageError, check, unreadable_error

_ENTRIES_PER_CHECK = 2**22
"""Number of matrix entries that are checked at a time, since a matrix may be larger than the memory."""


def read_teacher_features(argument: str, file: str, items: int, *, views: int | None = None) -> Tensor:
    """Read teacher features from a file: ``(items, k)`` per training item, or ``(items, views, k)`` per view.

    Args:
        argument: name of the option, for error messages.
        file: an ``.npy`` array, or an ``.npz`` of `contraport.embed`, of which the training items are taken.
        items: number of training items.
        views: number of views, if an ``.npy`` may have features per view.

    Raises:
        UsageError: the file is unreadable, has other items, or has numbers that are not finite.
    """
    array = _read_embedding(argument, file) if Path(file).suffix == ".npz" else read_npy(argument, file)
    per_view = views is not None and array.ndim == 3 and array.shape[1] == views
    good = (array.ndim == 2 or per_view) and len(array) == items and array.shape[-1] > 0 and array.dtype.kind in "iufb"
    or_views = "" if views is None else f" or ({items}, {views}, k)"
    check(
        good,
        f"{argument}: {file} must have numbers of shape ({items}, k){or_views}, one row per training item, got "
        f"{array.dtype} of shape {array.shape}.",
        "shape",
    )
    features = torch.from_numpy(array.astype(np.float32))
    finite = features.isfinite().flatten(1).all(1)
    message = f"{argument}: {file} must have finite numbers; see row {int(finite.long().argmin())}."
    check(bool(finite.all()), message, "not_finite")
    return features


def _read_embedding(argument: str, file: str) -> np.ndarray:
    """Return the features of the training items from a file that `contraport.embed` wrote."""
    arrays = read_npz(argument, file)
    features, splits = arrays.get("features"), arrays.get("splits")
    if features is None or splits is None or features.ndim == 0 or splits.shape != features.shape[:1]:
        message = f"{argument}: {file} must have the features and splits of contraport embed, got {sorted(arrays)}."
        raise UsageError(message, kind="no_features")
    chosen: np.ndarray = features[splits == "train"]
    return chosen


def read_pairwise_matrix(file: str, items: int) -> Tensor:
    """Read a nonnegative matrix between the training items, ``(items, items)``, from a file.

    A dense `.npy` is memory-mapped; an `.npz` of `scipy.sparse` gives a sparse tensor.

    Raises:
        UsageError: the file is unreadable, or the matrix has another shape, negative entries or only zeros.
    """
    try:
        if Path(file).suffix == ".npz":
            from scipy import sparse

            loaded = sparse.load_npz(file)
            if loaded.format in ("csr", "csc"):
                loaded.check_format(full_check=True)  # scipy would follow corrupt offsets out of its memory
            elif loaded.format != "coo":
                raise ValueError(f"the format must be csr, csc or coo, got {loaded.format}")
            entries = sparse.coo_array(loaded)
            values, shape = np.asarray(entries.data), entries.shape
        else:
            values = np.load(file, mmap_mode="c", allow_pickle=False)
            shape = values.shape
    except Exception as error:  # on corrupt bytes the parsers raise arbitrary exceptions
        raise unreadable_error(f"target: {file}", "an .npy array, or a sparse .npz of scipy,", error) from error
    check(
        shape == (items, items) and values.dtype.kind in "iufb",
        f"target: {file} must have numbers of shape ({items}, {items}), one row per training item, got {values.dtype} "
        f"of shape {shape}.",
        "shape",
    )
    has_entries = False
    rows = max(1, _ENTRIES_PER_CHECK // items)
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        good = bool(np.isfinite(part).all() and (part >= 0).all())
        message = f"target: {file} must have nonnegative finite numbers, got {part.min():g} to {part.max():g}."
        check(good, message, "negative")
        has_entries = has_entries or bool(part.any())
    check(has_entries, f"target: {file} must have an entry other than zero.", "all_zero")
    if Path(file).suffix != ".npz":
        return torch.from_numpy(values)
    places = torch.from_numpy(np.stack([np.asarray(place, dtype=np.int64) for place in entries.coords]))
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(values.astype(np.float32)), shape, check_invariants=True
    ).coalesce()


def select_batch_rows(values: Tensor, batch: Batch) -> Tensor:
    """Return the rows for the items of a batch, from values of all items ``(items, ...)``, on the batch's device."""
    return values[batch.ids.to(values.device)].to(batch.ids.device)
