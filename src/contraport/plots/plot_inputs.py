"""Conversion of figure inputs: tensors, arrays and lists to NumPy arrays, run folders to runs."""

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
RunFolder: TypeAlias = "Run | str | Path"


def as_plot_array(name: str, values: object, dimensions: int, *, finite: bool = True) -> Array:
    """Convert a tensor, array or list to a float64 NumPy array, and check its shape and values.

    Raises:
        UsageError: the number of dimensions differs, it is empty, or an entry is not finite (if `finite`).

    >>> as_plot_array("plan", [[1, 2]], 2)
    array([[1., 2.]])
    """
    try:
        result = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: must be numbers, got {type(values).__name__} ({error}).") from error
    good = result.ndim == dimensions and result.size > 0
    check(good, f"{name}: must have {dimensions} dimensions and not be empty, got shape {result.shape}.", "shape")
    good = not finite or bool(np.isfinite(result).all())
    check(good, f"{name}: must be finite, got NaN or infinity.", "not_finite")
    return result


def as_labels(values: object, items: int) -> Array | None:
    """Convert labels, numbers or strings, to a NumPy array (items,); None stays None."""
    if values is None:
        return None
    labels = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    check(labels.shape == (items,), f"labels: must have shape ({items},), got {labels.shape}.", "shape")
    return labels


def is_run_folder(value: object) -> bool:
    """Return whether a value is a `Run` or a path, rather than numbers."""
    runs = sys.modules.get("contraport.runs")  # before its import no value can be a Run, so it is not imported here
    return isinstance(value, str | Path) or (runs is not None and isinstance(value, runs.Run))


def load_run(folder: object) -> Run:
    """Return the `Run` of a run folder; a `Run` is returned as it is."""
    with require_extra("report", "To read a run"):
        from contraport.runs import Run

        return folder if isinstance(folder, Run) else Run(str(folder))


def sources_by_name(source: object) -> dict[str, Any]:
    """Return the data to draw by name: mappings unchanged, runs by folder name, any other value under "".

    >>> list(sources_by_name(["runs/a", "runs/b"])), list(sources_by_name({"x": 1})), list(sources_by_name(1.0))
    (['a', 'b'], ['x'], [''])
    """
    if isinstance(source, Mapping):
        return {str(name): load_run(value) if is_run_folder(value) else value for name, value in source.items()}
    if is_run_folder(source):
        return sources_by_name([source])
    if isinstance(source, Iterable) and not isinstance(source, Tensor | np.ndarray):
        several = list(source)
        if several and all(map(is_run_folder, several)):
            runs = [load_run(value) for value in several]
            ambiguous = len({each.name for each in runs}) < len(runs)
            return {str(each.path) if ambiguous else each.name: each for each in runs}
    return {"": source}


def load_evaluation_samples(folder: object, name: str) -> Mapping[str, Array]:
    """Load the arrays that the evaluation of a run stored for figures; the array `name` must exist.

    Raises:
        UsageError: the run was not evaluated, is corrupt, or the array is missing.
    """
    run = load_run(folder)
    samples = run.page_arrays()
    hint = "; evaluate the run again" if name in ("spectrum", "neighbors") else ""  # older evaluations lack these
    check(name in samples, f"run: {run.samples_path} has no {name!r}{hint}.", "missing")
    return samples
