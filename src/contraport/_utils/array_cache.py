"""Arrays that are made once and kept in a folder, mapped to memory, with what they were made of.

A folder of them is `view0.npy`, `view1.npy` and so on, and `made_of.json`, which is written last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from contraport._utils.files import create_memmap, replacing, write_json
from contraport._utils.locks import locked
from contraport.errors import writing

CACHE_KEY_FILE = "made_of.json"


def load_or_build_arrays(
    folder: Path,
    made_of: Mapping[str, Any],
    fill: Callable[[Sequence[np.ndarray]], None],
    *,
    what: str,
    argument: str,
    log: logging.Logger,
) -> tuple[np.ndarray, ...]:
    """Return the arrays in a folder where they were made of this, or else make them and put them there.

    Args:
        folder: where they are kept.
        made_of: what they have to be made of, as `opened` takes it.
        fill: fills arrays, which are empty and mapped to memory.
        what: what the log calls them; it says where they are, and why they are made again.
        argument: what messages call the folder.
        log: is told.

    Raises:
        UsageError: the folder cannot be written to.
    """
    arrays, why = opened(folder, made_of)
    if arrays is not None:
        log.info("%s are those in %s", what, folder)
        return arrays
    if why:
        log.warning("%s in %s are made again: %s", what, folder, why)
    with locked(folder, "train", argument=argument, wait=True), writing(argument, folder):
        arrays, _ = opened(folder, made_of)  # another process may have made them meanwhile
        if arrays is None:
            with making(folder, made_of) as empty:
                fill(empty)
            arrays, why = opened(folder, made_of)
        if arrays is None:
            raise OSError(why)
    return arrays


def path_of(folder: Path, view: int) -> Path:
    """Return where the array of a view is."""
    return folder / f"view{view}.npy"


def opened(folder: Path, made_of: Mapping[str, Any]) -> tuple[tuple[np.ndarray, ...] | None, str]:
    """Return the arrays in a folder where they were made of this, or else why they are of no use, where some are.

    Args:
        folder: where they are.
        made_of: what they have to be made of, as JSON has it; its ``shapes`` and ``dtype`` are those of the arrays.
    """
    told = folder / CACHE_KEY_FILE
    if not told.exists():
        return None, ""
    try:
        kept = json.loads(told.read_text("utf-8"))
        differing = [name for name in made_of if kept.get(name) != made_of[name]]
        if differing:
            return None, f"they are of other {' and '.join(differing)}"
        arrays = tuple(np.load(path_of(folder, view), mmap_mode="r") for view in range(len(made_of["shapes"])))
        good = all(
            list(array.shape) == shape and array.dtype.name == made_of["dtype"]
            for array, shape in zip(arrays, made_of["shapes"], strict=True)
        )
    except (OSError, ValueError, TypeError, AttributeError, EOFError):
        return None, "they are damaged"
    return (arrays, "") if good else (None, "they are damaged")


def total_bytes(made_of: Mapping[str, Any]) -> int:
    """Return how many bytes arrays take."""
    return sum(np.dtype(made_of["dtype"]).itemsize * int(np.prod(shape)) for shape in made_of["shapes"])


@contextmanager
def making(folder: Path, made_of: Mapping[str, Any]) -> Iterator[Sequence[np.ndarray]]:
    """Give arrays to fill, which take their places in a folder when the block ends well.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CACHE_KEY_FILE).unlink(missing_ok=True)  # what it tells is no more so
    with ExitStack() as places:
        arrays = []
        for view, shape in enumerate(made_of["shapes"]):
            temporary = places.enter_context(replacing(path_of(folder, view)))
            arrays.append(create_memmap(temporary, shape, made_of["dtype"]))
        yield arrays
        for array in arrays:
            array.flush()
        (folder / CACHE_KEY_FILE).unlink(missing_ok=True)  # another process may have written its own meanwhile
    write_json(folder / CACHE_KEY_FILE, made_of)
