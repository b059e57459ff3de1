"""Conversion of arrays and run folders to the inputs of figures.

Arrays of any kind become NumPy arrays; runs are opened, and named by their folders.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from contraport.errors import MAX_SINGLE_PRECISION, UsageError, check, format_value, translate_import_errors

if TYPE_CHECKING:
    from contraport.runs import Run, WritableRun

Array: TypeAlias = np.ndarray[Any, Any]
Values: TypeAlias = "Tensor | Array | list[Any] | tuple[Any, ...]"
"""Numbers that the figures draw."""

RunSource: TypeAlias = "Run | str | Path"
"""Run, or the path of its folder."""


def as_plot_array(argument: str, values: object, num_dimensions: int, *, finite: bool = True) -> Array:
    """Convert a tensor, array or list to a float64 NumPy array, or raise `UsageError`.

    >>> as_plot_array("plan", [[1, 2]], 2)
    array([[1., 2.]])
    """
    try:
        raw = values.detach().cpu() if isinstance(values, Tensor) else np.asarray(values)
        is_complex = raw.is_complex() if isinstance(raw, Tensor) else np.iscomplexobj(raw)
        check(not is_complex, f"{argument}: must be real numbers, got {format_value(values)}.")
        result = raw.double().numpy() if isinstance(raw, Tensor) else raw.astype(float, copy=False)
    except UsageError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{argument}: must be numbers, got {type(values).__name__} ({error}).") from error
    has_shape = result.ndim == num_dimensions and result.size > 0
    check(
        has_shape,
        f"{argument}: must have {num_dimensions} dimensions and not be empty, got shape {result.shape}.",
        "shape",
    )
    is_finite = not finite or bool((np.abs(result) <= MAX_SINGLE_PRECISION).all())
    check(
        is_finite, f"{argument}: must be finite numbers of single precision, got NaN, infinity or larger.", "not_finite"
    )
    return result


def to_numpy(argument: str, values: object) -> Array:
    """Convert a tensor, array or list to NumPy, keeping the data type."""
    try:
        return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{argument}: must be an array, got {format_value(values)} ({error}).") from error


def labels_to_numpy(values: object, num_items: int) -> Array:
    """Convert numeric or string labels to a NumPy array (num_items,)."""
    labels = to_numpy("labels", values)
    check(labels.shape == (num_items,), f"labels: must have shape ({num_items},), got {labels.shape}.", "shape")
    is_missing = labels != labels if labels.dtype.kind in "fc" else np.zeros(len(labels), dtype=bool)
    check(not is_missing.any(), f"labels: must not be NaN, got NaN for {int(is_missing.sum())} items.", "not_finite")
    return labels


def is_run_source(value: object) -> bool:
    """Return whether a value is a `Run`, a string or a `Path`."""
    runs = sys.modules.get("contraport.runs")  # before its import no value can be a Run, so it is not imported here
    return isinstance(value, str | Path) or (runs is not None and isinstance(value, runs.Run))


def load_run(folder: Any) -> WritableRun:
    """Open a run folder, or raise `UsageError` if the extra ``report`` is not installed."""
    with translate_import_errors("report", "To read a run"):
        from contraport.runs import as_run_folder

        return as_run_folder(folder)


def sources_by_name(source: object) -> dict[str, Any]:
    """Map names to the arrays or runs that a figure shows.

    Mappings stay, runs are opened and named by their folders, and any other value has the name "".

    >>> list(sources_by_name(["runs/a", "runs/b"])), list(sources_by_name({"x": 1})), list(sources_by_name(1.0))
    (['a', 'b'], ['x'], [''])
    """
    if isinstance(source, Mapping):
        return {str(name): value for name, value in source.items()}
    several = list(source) if isinstance(source, list | tuple) else [source]
    if not several or not all(map(is_run_source, several)):
        return {"": source}
    runs = [load_run(folder) for folder in several]
    is_ambiguous = len({run.name for run in runs}) < len(runs)
    return {str(run.path) if is_ambiguous else run.name: run for run in runs}


def load_evaluation_arrays(folder: object, required: str) -> Mapping[str, Array]:
    """Load a run's evaluation arrays, which must include the array named `required`."""
    run = load_run(folder)
    samples = run.page_arrays()
    check(required in samples, f"run: {run.samples_path} has no {required!r}; evaluate the run again.", "missing")
    return samples
