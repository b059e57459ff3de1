"""Builds target plans from the option `target`, such as ``domains:alpha=0.1``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from contraport._utils.files import read_npy_array
from contraport._utils.spec_parser import parse_spec
from contraport.data import Batch, Dataset
from contraport.data.formats.array_files import read_npy
from contraport.engine import Gibbs
from contraport.errors import (
    UsageError,
    check,
    check_existing_file,
    check_nonnegative,
    check_positive,
    rename_argument,
    unreadable_error,
)
from contraport.feature_files import Features, items_table_path, read_features
from contraport.objectives import (
    Domains,
    DuplicateGroups,
    Labels,
    Neighbors,
    Pairs,
    SimilarityMatrix,
    SoftNeighbors,
    Target,
)
from contraport.options import int_in_range

_PARAMETER_NAMES_BY_KIND: Mapping[str, tuple[str, ...]] = {
    "pairs": (),
    "labels": (),
    "domains": ("alpha", "beta"),
    "shown": (),
    "soft": ("file", "temperature"),
    "neighbors": ("k", "features"),
    "matrix": ("file",),
}
"""Names of the parameters of each kind of target, such as alpha and beta of ``domains:alpha=0.1,beta=0``."""

_BATCH_INDEPENDENT_TARGET_BY_KIND: Mapping[str, type[Target]] = {"pairs": Pairs, "labels": Labels, "domains": Domains}
"""Classes of targets that are the same for all batches, by kind."""


def build_target_function(text: str, dataset: Dataset) -> Callable[[Batch], Target]:
    """Build the function that returns the target plan of a batch.

    The help of the option `target` has the syntax of `text`. Features are a file of `contraport.embed`, matched by the
    row of each item in the data, or ``(items, k)`` numbers in another ``.npy``, in the order of `dataset`. A matrix is
    ``(items, items)`` in an ``.npy``, or an ``.npz`` of `scipy.sparse.save_npz`, in the order of `dataset`.

    Raises:
        UsageError: an unknown name or parameter, a value out of range, a file that is missing, corrupt or of other
            items, or data without the required labels or domains.

    >>> from contraport.data import load
    >>> digits = load("digits")
    >>> build_target_function("labels", digits)(digits[0]), build_target_function("neighbors:k=3", digits)(digits[0])
    (Labels(), Neighbors(neighbors=3))
    """
    name, parameters = parse_target_spec(text)
    if name in _BATCH_INDEPENDENT_TARGET_BY_KIND:
        has_attribute = name == "pairs" or getattr(dataset, name) is not None
        check(has_attribute, f"target: {name} requires data with {name}; {dataset.name!r} has none.", "missing_data")
        return partial(_get_same_target, _BATCH_INDEPENDENT_TARGET_BY_KIND[name](**parameters))
    if name == "shown" and dataset.entity_ids is not None:
        pairs = dataset.entity_ids
        shape = [int(count) + 1 for count in pairs.amax(0)]
        known_pairs = torch.sparse_coo_tensor(pairs.T, torch.ones(len(pairs)), shape, check_invariants=True).coalesce()
        return partial(_build_target_from_rows, partial(SimilarityMatrix, known_pairs), pairs)
    if name == "shown":
        numbers = dataset.view_content_ids_if_repeated
        if numbers is None:
            message = f"target: shown requires items with equal content; all items of {dataset.name!r} differ."
            raise UsageError(message, kind="missing_data")
        repeats = [column for column in numbers.unbind(1) if len(column.unique()) < len(column)]
        return partial(_build_target_from_rows, DuplicateGroups, torch.stack(repeats, dim=1))
    if name == "matrix":
        matrix = read_pairwise_matrix(str(parameters["file"]), len(dataset))
        return partial(_build_target_from_rows, partial(SimilarityMatrix, matrix), torch.arange(len(dataset)))
    if name == "soft":
        teacher = read_teacher_features("target", str(parameters["file"]), dataset)
        kernel = Gibbs("cosine", parameters.get("temperature", 0.1))
        return partial(_build_target_from_rows, partial(SoftNeighbors, kernel=kernel), teacher)
    number = parameters.get("k", 5)
    if "features" in parameters:
        features = read_teacher_features("target", str(parameters["features"]), dataset)
        return partial(_build_target_from_rows, partial(Neighbors, neighbors=number), features)
    complete = dataset.present is None or bool(dataset.present[:, 0].all())
    message = f"target: neighbors requires features=FILE, as some items of {dataset.name!r} lack their first view."
    check(complete, message, "missing_views")
    return partial(_build_input_neighbors_target, number)


# Functions at module level, not lambdas, so that a training module can be pickled.


def _get_same_target(target: Target, _batch: Batch) -> Target:
    """Return the same target for every batch."""
    return target


def _build_target_from_rows(build: Callable[[Tensor], Target], values: Tensor, batch: Batch) -> Target:
    """Build the target of a batch from the rows of `values` for its items."""
    return build(select_batch_rows(values, batch))


def _build_input_neighbors_target(num_neighbors: int, batch: Batch) -> Target:
    """Return the target whose positives are nearest neighbors by the first view's inputs."""
    view = batch.views[0]
    return Neighbors((view / 255.0 if view.dtype == torch.uint8 else view).flatten(1), num_neighbors)


def parse_target_spec(text: str, *, check_files: bool = True) -> tuple[str, dict[str, Any]]:
    """Parse a target option into the kind of target and its parameters.

    Raises:
        UsageError: as `build_target_function`, except for errors that depend on the items or the content of files.
    """
    required = {"soft": "file", "matrix": "file"}  # its name may be omitted, as in soft:FILE
    name, parameters = parse_spec("target", text, _PARAMETER_NAMES_BY_KIND, unnamed_setting_by_name=required)
    has_required = name not in required or required[name] in parameters
    check(has_required, f"target: must be {name}:FILE, got {text!r}.", "file_missing")
    for parameter, value in parameters.items():
        argument = f"target: {parameter}"
        if parameter in ("alpha", "beta"):
            check_nonnegative(argument, value)
        elif parameter == "k":
            int_in_range(1)(argument, value)
        elif parameter == "temperature":
            check_positive(argument, value)
        elif check_files:
            check_existing_file(argument, str(value))
    return name, dict(parameters)


def find_batch_independent_target(text: str) -> Target | None:
    """Return the target if it is the same for all batches, else None.

    >>> find_batch_independent_target("domains:alpha=0.1"), find_batch_independent_target("neighbors:k=3")
    (Domains(alpha=0.1), None)
    """
    name, parameters = parse_target_spec(text, check_files=False)  # they may be gone when a run is evaluated
    return _BATCH_INDEPENDENT_TARGET_BY_KIND[name](**parameters) if name in _BATCH_INDEPENDENT_TARGET_BY_KIND else None


def read_teacher_features(argument: str, file: str, dataset: Dataset, *, views: int | None = None) -> Tensor:
    """Read teacher features of the items, ``(items, k)`` or ``(items, views, k)``.

    Args:
        argument: name of the option, for error messages.
        file: a file of `contraport.embed`, whose items are matched by their row in the data, or an ``.npy`` with one
            row per item in the order of `dataset`.
        dataset: the items.
        views: number of views, if an ``.npy`` may have features per view.

    Raises:
        UsageError: the file is unreadable, lacks items, or has numbers that are not finite.
    """
    path, items = Path(file), len(dataset)
    if path.suffix in (".npz", ".parquet") or (path.suffix == ".npy" and items_table_path(path).exists()):
        with rename_argument(argument, "features"):
            embedded = read_features(path)
        array = embedded.features[_find_feature_rows_of_items(argument, file, embedded, dataset)]
    else:
        array = read_npy(argument, file)
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


def _find_feature_rows_of_items(argument: str, file: str, embedded: Features, dataset: Dataset) -> np.ndarray:
    """Return each item's position in `embedded`, matched by source row.

    Items of the same source row must have the same order in both.

    Raises:
        UsageError: `embedded` lacks items.
    """
    rows = dataset.source_rows.numpy()
    masks = [embedded.splits == dataset.split]
    if dataset.num_random_test_items is not None and len(np.unique(rows)) == len(rows):
        masks.append(np.ones(len(embedded), dtype=bool))  # a random split numbers the rows of both splits together
    for mask in masks:
        found = np.flatnonzero(mask & np.isin(embedded.source_rows, rows))
        if np.array_equal(np.sort(embedded.source_rows[found]), np.sort(rows)):
            positions = np.empty_like(found)
            order = np.argsort(embedded.source_rows[found], kind="stable")
            positions[np.argsort(rows, kind="stable")] = found[order]
            return positions
    number = np.isin(rows, embedded.source_rows[masks[0]]).sum()
    message = f"{argument}: {file} must have features of {len(rows)} items of {dataset.name!r}, split {dataset.split}, "
    message += f"matched by their rows in the data, got those of {number}. Embed the same data with --split all."
    raise UsageError(message, kind="other_data")


def read_pairwise_matrix(file: str, items: int) -> Tensor:
    """Read a nonnegative matrix with one row and column per training item.

    A dense `.npy` is memory-mapped; an `.npz` of `scipy.sparse` gives a sparse tensor.

    Raises:
        UsageError: the file is unreadable, or the matrix has another shape, negative entries or only zeros.
    """
    try:
        if Path(file).suffix == ".npz":
            from scipy import sparse

            with Path(file).open("rb") as opened:  # SciPy leaves a damaged archive open if it opens the file itself
                loaded = sparse.load_npz(opened)
            if loaded.format in ("csr", "csc"):
                loaded.check_format(full_check=True)  # scipy would follow corrupt offsets out of its memory
            elif loaded.format != "coo":
                raise ValueError(f"the format must be csr, csc or coo, got {loaded.format}")
            entries = sparse.coo_array(loaded)
            values, shape = np.asarray(entries.data), entries.shape
        else:
            values = read_npy_array(file, "c")
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
    rows = max(1, 2**22 // items)  # checked in parts, since a matrix may be larger than the memory
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        good = bool(np.isfinite(part).all() and (part >= 0).all())
        message = f"target: {file} must have nonnegative finite numbers, got {part.min():g} to {part.max():g}."
        check(good, message, "negative")
        has_entries = has_entries or bool(part.any())
    check(has_entries, f"target: {file} must have an entry other than zero.", "all_zero")
    if Path(file).suffix != ".npz":
        return torch.from_numpy(values)
    indices = torch.from_numpy(np.stack([np.asarray(axis, dtype=np.int64) for axis in entries.coords]))
    return torch.sparse_coo_tensor(
        indices, torch.from_numpy(values.astype(np.float32)), shape, check_invariants=True
    ).coalesce()


def select_batch_rows(values: Tensor, batch: Batch) -> Tensor:
    """Return the rows of `values` for a batch's items, on the batch's device."""
    return values[batch.ids.to(values.device)].to(batch.ids.device)
