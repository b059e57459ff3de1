"""What figures are drawn of: tensors, arrays and lists as arrays; run folders as runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from contraport.errors import UsageError, check, require_extra

if TYPE_CHECKING:
    from contraport.runs import Run

Array: TypeAlias = np.ndarray[Any, Any]
Values: TypeAlias = "Tensor | Array | list[Any] | tuple[Any, ...]"
Folder: TypeAlias = "Run | str | Path"
"""A run, or the folder of one."""


def array(name: str, values: object, dimensions: int, *, finite: bool = True) -> Array:
    """Return a tensor, an array or a list as an array, without its gradient.

    Raises:
        UsageError: it has another number of dimensions, no entries, or, where all are to be finite, one that is not.

    >>> array("plan", [[1, 2]], 2)
    array([[1., 2.]])
    """
    try:
        found = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: expected numbers, got {type(values).__name__} ({error}).") from error
    good = found.ndim == dimensions and found.size > 0
    check(good, f"{name}: expected {dimensions} dimensions and some entries, got shape {found.shape}.")
    good = not finite or bool(np.isfinite(found).all())
    check(good, f"{name}: expected finite numbers, got NaN or infinity among them.")
    return found


def as_labels(values: object, items: int) -> Array | None:
    """Return the label of each item, (items,), numbers or words; none where there are none."""
    if values is None:
        return None
    found = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    check(found.shape == (items,), f"labels: expected one of each item, ({items},), got shape {found.shape}.")
    return found


def is_folder(value: object) -> bool:
    """Return whether a value names the folder of a run."""
    runs = sys.modules.get("contraport.runs")  # before this is imported nothing is a run
    return isinstance(value, str | Path) or (runs is not None and isinstance(value, runs.Run))


def run(folder: object) -> Run:
    """Return the run of a folder."""
    with require_extra("report", "To read a run"):
        from contraport.runs import Run

        return folder if isinstance(folder, Run) else Run(str(folder))


def by_name(given: object) -> dict[str, Any]:
    """Return what is given by its names: a mapping as it is, runs by their folders, anything else without a name.

    >>> list(by_name(["runs/a", "runs/b"])), list(by_name({"x": 1})), list(by_name(1.0))
    (['a', 'b'], ['x'], [''])
    """
    if isinstance(given, Mapping):
        return {str(name): run(value) if is_folder(value) else value for name, value in given.items()}
    if is_folder(given):
        return by_name([given])
    if isinstance(given, Iterable) and not isinstance(given, Tensor | np.ndarray):
        several = list(given)
        if several and all(map(is_folder, several)):
            runs = [run(value) for value in several]
            alike = len({each.name for each in runs}) < len(runs)
            return {str(each.path) if alike else each.name: each for each in runs}
    return {"": given}


def sampled(folder: object, name: str) -> Mapping[str, Array]:
    """Return what the evaluation of a run has kept to draw, which must have one array.

    Raises:
        UsageError: the run was not evaluated, is corrupt, or its evaluation has kept no such array.
    """
    opened = run(folder)
    samples = opened.samples()
    again = "; evaluate the run again" if name in ("spectrum", "neighbors") else ""
    check(name in samples, f"run: {opened.samples_path} has no {name!r}{again}.")
    return samples
