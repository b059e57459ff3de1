"""Cache of memory-mapped NumPy arrays in a folder.

A key records what the arrays were computed from. A cache folder has one array per view, `view0.npy`, `view1.npy`, ...,
and the key in `made_of.json`, written last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contraport._utils.files import atomic_write, preallocate_memmap, write_json
from contraport._utils.locks import lock_folder
from contraport.errors import translate_write_errors

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
    """Load arrays from a cache folder, or compute and store them.

    Args:
        folder: cache folder.
        key: the key, as in `find_cached_arrays`.
        fill: fills empty, memory-mapped arrays.
        description: name of the arrays in the log.
        argument: name of the option that gives the folder, for errors.
        log: logger for where the arrays are and why they are computed again.
    """

    def warn(reason: str) -> None:
        log.warning("%s in %s are made again: %s", description, folder, reason)

    arrays = find_cached_arrays(folder, key, warn)
    if arrays is not None:
        log.info("%s are those in %s", description, folder)
        return arrays
    with lock_folder(folder, "train", argument=argument, wait=True), translate_write_errors(argument, folder):
        arrays = find_cached_arrays(folder, key)  # another process may have made them meanwhile
        if arrays is None:
            with arrays_to_fill_and_cache(folder, key) as empty:
                fill(empty)
            arrays = find_cached_arrays(folder, key)
        if arrays is None:
            raise OSError("the arrays were damaged after they were written")
    return arrays


def cached_array_path(folder: Path, view: int) -> Path:
    """Return the path of one view's array in a cache folder."""
    return folder / f"view{view}.npy"


def find_cached_arrays(
    folder: Path, key: Mapping[str, Any], warn: Callable[[str], None] | None = None
) -> tuple[np.ndarray, ...] | None:
    """Return the cached arrays, or None if none were stored with this key.

    They are copy-on-write, as torch requires writable memory.

    Args:
        folder: cache folder.
        key: JSON-serializable; its ``shapes`` and ``dtype`` are those of the arrays.
        warn: receives the reason if there are arrays that cannot be used.
    """
    key_file = folder / CACHE_KEY_FILE
    if not key_file.exists():
        return None
    reason = "they are damaged"
    try:
        saved = json.loads(key_file.read_text("utf-8"))
        differing = [name for name in key if saved.get(name) != key[name]]
        if differing:
            reason = f"they are of other {' and '.join(differing)}"
        else:
            paths = [cached_array_path(folder, view) for view in range(len(key["shapes"]))]
            arrays = tuple(np.load(path, mmap_mode="c") for path in paths)
            if all(
                list(array.shape) == shape and array.dtype.name == key["dtype"]
                for array, shape in zip(arrays, key["shapes"], strict=True)
            ):
                return arrays
    except (OSError, ValueError, TypeError, AttributeError, EOFError):
        pass
    if warn is not None:
        warn(reason)
    return None


def expected_array_bytes(key: Mapping[str, Any]) -> int:
    """Return the total bytes that arrays of the dtype and shapes in `key` take."""
    return sum(np.dtype(key["dtype"]).itemsize * int(np.prod(shape)) for shape in key["shapes"])


@contextmanager
def arrays_to_fill_and_cache(folder: Path, key: Mapping[str, Any]) -> Iterator[Sequence[np.ndarray]]:
    """Context manager that yields arrays to fill, and caches them on success."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CACHE_KEY_FILE).unlink(missing_ok=True)  # before the arrays change: a key is never beside other arrays
    with ExitStack() as stack:
        arrays = []
        for view, shape in enumerate(key["shapes"]):
            temporary = stack.enter_context(atomic_write(cached_array_path(folder, view)))
            arrays.append(preallocate_memmap(temporary, shape, key["dtype"]))
        yield arrays
        for array in arrays:
            array.flush()
        (folder / CACHE_KEY_FILE).unlink(missing_ok=True)  # another process may have written its own meanwhile
    write_json(folder / CACHE_KEY_FILE, key)
