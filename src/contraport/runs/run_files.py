"""What is read of a run's files, and what it may be: a corrupt one is told in a line."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from contraport._utils.formatting import format_options
from contraport.errors import UsageError, check, one_line_reason

MetricsRow = dict[str, Any]
NUMBER = (int, float)


def read(path: Path, reader: Callable[[Path], Any], remedy: str = ".") -> Any:
    """Return what a reader makes of a file of a run.

    Raises:
        UsageError: there is no such file, or it is corrupt; then the message ends with the remedy.
    """
    check(path.exists(), f"run: {path.parent} has no {path.name}{_remedy(path.name)}.")
    try:
        return reader(path)
    except UsageError:
        raise
    except Exception as error:  # a corrupt file fails in as many ways as there are readers
        raise UsageError(f"run: {path} is corrupt: {one_line_reason(error)}{remedy}") from error


AGAIN = "; run `contraport evaluate` on the run again."


def _remedy(name: str) -> str:
    """Return how a run gets a file or folder that it lacks."""
    if name in ("evaluation.json", "samples.npz", "items.npz"):
        return " yet: run `contraport evaluate` on it first"
    if name == "pairs.npz":
        return f" yet: only a training with {format_options(audit=True)} judges its pairs"
    if name == "mismatched.npz":
        return f": only a training with {format_options(mismatch=...)} has one"
    return f" yet: its training did not end; go on with {format_options(resume=True)}" if name == "model" else ""


def read_rows(path: Path) -> list[MetricsRow]:
    """Return the rows of a `metrics.jsonl`; a last line that was cut off while it was written is left out."""
    lines = path.read_text("utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"run: {path} is corrupt: line {number} is no JSON.") from error
        check(isinstance(row, dict), f"run: {path} is corrupt: line {number} is no object.")
        good = is_of_kind(row.get("step"), int) and all(is_of_kind(value, *NUMBER, None) for value in row.values())
        check(good, f"run: {path} is corrupt: line {number} is no row of numbers with a step.")
        rows.append(row)
    return rows


def is_of_kind(value: Any, *kinds: Any) -> bool:
    """Return whether a value that a file gave is of one of some kinds; true and false are no numbers."""
    if value is None or isinstance(value, bool):
        return value is None and None in kinds
    return isinstance(value, tuple(filter(None, kinds)))


def are_nested_numbers(values: Any, *, depth: int) -> bool:
    """Return whether a value that a file gave is objects within objects, so many deep, with numbers in the last.

    >>> are_nested_numbers({"raw": {"knn": 0.5}}, depth=2), are_nested_numbers({"raw": 0.5}, depth=2)
    (True, False)
    """
    if depth == 0:
        return is_of_kind(values, *NUMBER)
    return isinstance(values, dict) and all(are_nested_numbers(value, depth=depth - 1) for value in values.values())


def check_kinds(path: Path, values: Mapping[str, Any], kinds: Mapping[str, tuple[Any, ...]], remedy: str = ".") -> None:
    """Raise `UsageError` where a named value is of none of the kinds that it may be."""
    for name, expected in kinds.items():
        good = name not in values or is_of_kind(values[name], *expected)
        check(good, f"run: {path} is corrupt: {name} is {values.get(name)!r}{remedy}")


def read_evaluation(path: Path) -> dict[str, Any]:
    """Return what an `evaluation.json` holds: numbers of encoders by measure, and what else is told of them."""
    values = json.loads(path.read_text("utf-8"))
    corrupt = f"run: {path} is corrupt: expected an object with 'rows' of numbers{AGAIN}"
    check(isinstance(values, dict) and isinstance(values.get("rows"), dict), corrupt)
    check(all(isinstance(row, dict) for row in values["rows"].values()), corrupt)
    check(all(is_of_kind(number, *NUMBER, None) for row in values["rows"].values() for number in row.values()), corrupt)
    check_kinds(path, values, _EVALUATION, AGAIN)
    for name in ("intervals", "differences", "directions"):
        check(are_nested_numbers(values.get(name, {}), depth=3), f"run: {path} is corrupt: {name}{AGAIN}")
    return dict(values)


# What is read of an evaluation, and what it may be.
_EVALUATION: dict[str, tuple[Any, ...]] = {
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
_ARRAYS = {
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
    """Return the arrays of a `samples.npz` or `pairs.npz`, of the dimensions and types that are expected of them."""
    if not zipfile.is_zipfile(path):
        raise ValueError("it is no .npz file")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name!r} is no array")
        dimensions, kinds = _ARRAYS.get(name, (array.ndim, array.dtype.kind))
        if array.ndim != dimensions or array.dtype.kind not in kinds:
            raise ValueError(f"{name!r} has shape {array.shape} and type {array.dtype}")
    _check_agree(arrays)
    return arrays


def _check_agree(arrays: Mapping[str, np.ndarray]) -> None:
    """Raise `ValueError` where what is kept of each item is of other items, or names an item that there is not."""
    for of, names in _OF_ONE_LENGTH.items():
        for name in names:
            if of in arrays and name in arrays and len(arrays[name]) != len(arrays[of]):
                raise ValueError(f"{name!r} has {len(arrays[name])} rows, {of!r} {len(arrays[of])}")
    for name, of in _PLACES.items():
        if name in arrays and of in arrays and arrays[name].size:
            least, most = int(arrays[name].min()), int(arrays[name].max())
            if least < 0 or most >= len(arrays[of]):
                raise ValueError(f"{name!r} has {least if least < 0 else most}, a place that {of!r} has not")


_OF_ONE_LENGTH = {
    "points": ("labels", "ids", "neighbors", "domains", "losses", "suspicion", "texts", "thumbnails"),
    "cosines": ("cosine_labels",),
    "plan_epochs": ("plans", "targets"),
    "plan": ("target",),
    "scores": ("kept", "fdr", "partners", "partner_scores"),
}
_PLACES = {
    "neighbors": "points",
    "labels": "class_names",
    "plan_labels": "class_names",
    "cosine_labels": "class_names",
    "domains": "domain_names",
}
