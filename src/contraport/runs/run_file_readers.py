"""Readers of the files of a run folder, which also validate the content."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from contraport._utils.formatting import format_options
from contraport.errors import UsageError, check, one_line_reason

T = TypeVar("T")

MetricsRow = dict[str, Any]
NUMBER = (int, float)


def read_run_file(path: Path, reader: Callable[[Path], T], remedy: str = ".") -> T:
    """Read a file of a run folder with a reader; errors become a `UsageError`.

    Args:
        path: the file.
        reader: parses the file; any exception that it raises means that the file is corrupt.
        remedy: end of the message for a corrupt file.

    Raises:
        UsageError: the file is missing or corrupt.
    """
    check(path.exists(), f"run: {path.parent} has no {path.name}{_remedy(path.name)}.", "missing_file")
    try:
        return reader(path)
    except UsageError:
        raise
    except Exception as error:  # on corrupt bytes the parsers raise arbitrary exceptions
        raise UsageError(f"run: {path} is corrupt: {one_line_reason(error)}{remedy}", kind="corrupt") from error


REEVALUATE = "; run `contraport evaluate` on the run again."


def _remedy(name: str) -> str:
    """Return the remedy for a missing file: the command or option that writes it."""
    if name in ("evaluation.json", "samples.npz", "items.npz"):
        return ": run `contraport evaluate` first"
    if name == "pairs.npz":
        return f": only a training with {format_options(audit=True)} writes it"
    if name == "mismatched.npz":
        return f": only a training with {format_options(mismatch=...)} writes it"
    return f": its training is not complete; continue it with {format_options(resume=True)}" if name == "model" else ""


def read_metrics_rows(path: Path) -> list[MetricsRow]:
    """Read the rows of a `metrics.jsonl`; an incomplete last line is ignored."""
    lines = path.read_text("utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"run: {path} is corrupt: line {number} is not JSON.", kind="corrupt") from error
        good = isinstance(row, dict) and has_json_type(row.get("step"), int)
        good = good and all(has_json_type(value, *NUMBER, None) for value in row.values())
        check(good, f"run: {path} is corrupt: line {number} must be an object of numbers with a step.", "corrupt")
        rows.append(row)
    return rows


def has_json_type(value: Any, *kinds: Any) -> bool:
    """Return whether a JSON value has one of the given types; true and false do not count as numbers."""
    if value is None or isinstance(value, bool):
        return value is None and None in kinds
    return isinstance(value, tuple(filter(None, kinds)))


def is_nested_number_mapping(values: Any, *, depth: int) -> bool:
    """Return whether a JSON value is a mapping, nested to the given depth, whose leaves are numbers.

    >>> is_nested_number_mapping({"raw": {"knn": 0.5}}, depth=2), is_nested_number_mapping({"raw": 0.5}, depth=2)
    (True, False)
    """
    if depth == 0:
        return has_json_type(values, *NUMBER)
    return isinstance(values, dict) and all(
        is_nested_number_mapping(value, depth=depth - 1) for value in values.values()
    )


def check_json_types(
    path: Path, values: Mapping[str, Any], kinds: Mapping[str, tuple[Any, ...]], remedy: str = "."
) -> None:
    """Raise `UsageError` if a value of a JSON object has none of the types allowed for its name."""
    for name, expected in kinds.items():
        good = name not in values or has_json_type(values[name], *expected)
        check(good, f"run: {path} is corrupt: {name} is {values.get(name)!r}{remedy}", "corrupt")


def read_evaluation(path: Path) -> dict[str, Any]:
    """Read an `evaluation.json`: metrics by encoder, intervals and notes."""
    values = json.loads(path.read_text("utf-8"))
    corrupt = f"run: {path} is corrupt: expected an object with 'rows' of numbers{REEVALUATE}"
    check(isinstance(values, dict) and isinstance(values.get("rows"), dict), corrupt, "corrupt")
    for row in values["rows"].values():
        good = isinstance(row, dict) and all(has_json_type(number, *NUMBER, None) for number in row.values())
        check(good, corrupt, "corrupt")
    check_json_types(path, values, _EVALUATION_TYPES, REEVALUATE)
    for name in ("intervals", "differences", "directions"):
        check(
            is_nested_number_mapping(values.get(name, {}), depth=3),
            f"run: {path} is corrupt: {name}{REEVALUATE}",
            "corrupt",
        )
    return dict(values)


# Allowed types of the values of an evaluation.json.
_EVALUATION_TYPES: dict[str, tuple[Any, ...]] = {
    "data": (str,),
    "notes": (list,),
    "not_measured": (list,),
    "intervals": (dict,),
    "differences": (dict,),
    "directions": (dict,),
    "epochs": (int, None),
    "train_items": (int,),
    "test_items": (int,),
    "uniformity_items": (int,),
    "pairs_of_runs": (int,),
}
# Dimensions and NumPy type codes of the arrays of .npz files.
_ARRAY_TYPES = {
    "points": (2, "f"),
    "spectrum": (1, "f"),
    "projection": (0, "U"),
    "labels": (1, "iu"),
    "class_names": (1, "U"),
    "thumbnails": (4, "u"),
    "plan": (2, "f"),
    "target": (2, "f"),
    "plan_items": (0, "iu"),
    "plan_labels": (1, "iu"),
    "plan_view_1": (4, "u"),
    "plan_view_2": (4, "u"),
    "plans": (3, "f"),
    "targets": (3, "f"),
    "plan_epochs": (1, "iu"),
    "ids": (1, "iu"),
    "neighbors": (2, "iu"),
    "domains": (1, "iu"),
    "domain_names": (1, "U"),
    "cosines": (2, "f"),
    "cosine_labels": (1, "iu"),
    "confusion": (2, "iu"),
    "losses": (1, "f"),
    "suspicion": (1, "f"),
    "texts": (1, "U"),
    "scores": (1, "f"),
    "mismatched": (1, "f"),
    "fdr": (1, "f"),
    "kept": (1, "b"),
    "partners": (1, "iu"),
    "partner_scores": (1, "f"),
    "epoch": (0, "iu"),
    "train": (1, "iu"),
    "test": (1, "iu"),
    "fingerprint": (0, "U"),
    **dict.fromkeys(("rate", "low", "high", "remembered"), (0, "f")),
}


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an .npz file of a run; their dimensions, types and lengths are checked."""
    if not zipfile.is_zipfile(path):
        raise ValueError("not an .npz file")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name!r} is not an array")
        dimensions, kinds = _ARRAY_TYPES.get(name, (array.ndim, array.dtype.kind))
        if array.ndim != dimensions or array.dtype.kind not in kinds:
            raise ValueError(f"{name!r} has shape {array.shape} and type {array.dtype}")
    _check_consistent(arrays)
    return arrays


def _check_consistent(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `ValueError` if arrays with one row per item differ in length, or an index is out of range."""
    for of, names in _EQUAL_LENGTHS.items():
        for name in names:
            if of in arrays and name in arrays and len(arrays[name]) != len(arrays[of]):
                raise ValueError(f"{name!r} has {len(arrays[name])} rows, {of!r} {len(arrays[of])}")
    for name, of in _INDICES.items():
        if name in arrays and of in arrays and arrays[name].size:
            least, most = int(arrays[name].min()), int(arrays[name].max())
            if least < 0 or most >= len(arrays[of]):
                raise ValueError(f"{name!r} has the index {least if least < 0 else most}, out of range of {of!r}")


# Arrays that have the length of the first.
_EQUAL_LENGTHS = {
    "points": ("labels", "ids", "neighbors", "domains", "losses", "suspicion", "texts", "thumbnails"),
    "cosines": ("cosine_labels",),
    "plan_epochs": ("plans", "targets"),
    "plan": ("target",),
    "scores": ("kept", "fdr", "partners", "partner_scores"),
}
# Arrays of indices, and the array that they index.
_INDICES = {
    "neighbors": "points",
    "labels": "class_names",
    "plan_labels": "class_names",
    "cosine_labels": "class_names",
    "domains": "domain_names",
}
