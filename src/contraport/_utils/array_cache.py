"""Cache of memory-mapped NumPy arrays in a folder, with a key that records the inputs of their computation.

A cache folder has one array per view, `view0.npy`, `view1.npy`, ..., and the key in `made_of.json`, written last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contraport._utils.files import atomic_write, create_memmap, write_json
from contraport._utils.locks import lock_folder
from contraport.errors import report_write_errors

CACHE_KEY_FILE = "made_of.json"  # name of the file in a cache folder that holds the key of its arrays


def load_or_build_arrays(
    folder: Path,
    key: Mapping[str, Any],
    fill: Callable[[Sequence[np.ndarray]], None],
    *,
    description: str,
    argument: str,
    log: logging.Logger,
) -> tuple[np.ndarray, ...]:
    """Load arrays from a cache folder if their key matches; otherwise compute and store them.

    Args:
        folder: cache folder.
        key: the key, as in `open_cached_arrays_or_reason`.
        fill: fills empty, memory-mapped arrays.
        description: name of the arrays in the log.
        argument: name of the option that gives the folder, for errors.
        log: logger for where the arrays are and why they are computed again.
    """
    arrays, reason = open_cached_arrays_or_reason(folder, key)
    if arrays is not None:
        log.info("%s are those in %s", description, folder)
        return arrays
    if reason:
        log.warning("%s in %s are made again: %s", description, folder, reason)
    with lock_folder(folder, "train", argument=argument, wait=True), report_write_errors(argument, folder):
        arrays, _ = open_cached_arrays_or_reason(folder, key)  # another process may have made them meanwhile
        if arrays is None:
            with create_cached_arrays(folder, key) as empty:
                fill(empty)
            arrays, reason = open_cached_arrays_or_reason(folder, key)
        if arrays is None:
            raise OSError(reason)
    return arrays


def cached_array_path(folder: Path, view: int) -> Path:
    """Return the path of the cached array of a view."""
    return folder / f"view{view}.npy"


def open_cached_arrays_or_reason(folder: Path, key: Mapping[str, Any]) -> tuple[tuple[np.ndarray, ...] | None, str]:
    """Open the arrays of a cache folder, or return the reason why they cannot be used.

    Args:
        folder: cache folder.
        key: JSON-serializable; its ``shapes`` and ``dtype`` are those of the arrays.

    Returns:
        The arrays, copy-on-write as torch requires writable memory, and ``""``; or None and the reason why the files
        there cannot be used (``""`` if there are none).
    """
    key_file = folder / CACHE_KEY_FILE
    if not key_file.exists():
        return None, ""
    try:
        saved = json.loads(key_file.read_text("utf-8"))
        differing = [name for name in key if saved.get(name) != key[name]]
        if differing:
            return None, f"they are of other {' and '.join(differing)}"
        arrays = tuple(np.load(cached_array_path(folder, view), mmap_mode="c") for view in range(len(key["shapes"])))
        valid = all(
            list(array.shape) == shape and array.dtype.name == key["dtype"]
            for array, shape in zip(arrays, key["shapes"], strict=True)
        )
    except (OSError, ValueError, TypeError, AttributeError, EOFError):
        return None, "they are damaged"
    return (arrays, "") if valid else (None, "they are damaged")


def cache_bytes_needed(key: Mapping[str, Any]) -> int:
    """Return the total size in bytes of the arrays that a cache key describes."""
    return sum(np.dtype(key["dtype"]).itemsize * int(np.prod(shape)) for shape in key["shapes"])


@contextmanager
def create_cached_arrays(folder: Path, key: Mapping[str, Any]) -> Iterator[Sequence[np.ndarray]]:
    """Context manager: yield empty memory-mapped arrays, which replace the cached ones if the block succeeds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CACHE_KEY_FILE).unlink(missing_ok=True)  # before the arrays change: a key is never beside other arrays
    with ExitStack() as stack:
        arrays = []
        for view, shape in enumerate(key["shapes"]):
            temporary = stack.enter_context(atomic_write(cached_array_path(folder, view)))
            arrays.append(create_memmap(temporary, shape, key["dtype"]))
        yield arrays
        for array in arrays:
            array.flush()
        (folder / CACHE_KEY_FILE).unlink(missing_ok=True)  # another process may have written its own meanwhile
    write_json(folder / CACHE_KEY_FILE, key)
