"""Formats of data in files and folders, one module each, and their registry.

All modules here are imported, so a new format is added by a file of its own with a reader under `data_format`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from contraport.data.dataset import Dataset
from contraport.errors import check

__all__ = ["FORMATS", "Format", "data_format", "find_format"]

LoadOptionName = Literal["image_size", "columns", "test_fraction", "ignore_labels"]
"""Name of an option of `load` that a format may accept."""


@dataclass(frozen=True)
class Format:
    """Format of data in files or folders, with its reader.

    Attributes:
        suffixes: suffixes of the format's files.
        recognizes: function that returns whether data at a path, as the user gave it, have the format.
        read: function that reads one split, called with the path, the split and the declared `options` by name.
        options: options of `contraport.data.load` that the reader accepts.
        is_fallback: whether the format is tried after all others, because it recognizes their paths too.
    """

    suffixes: tuple[str, ...]
    recognizes: Callable[[str], bool]
    read: Callable[..., Dataset]
    options: tuple[LoadOptionName, ...]
    is_fallback: bool


FORMATS: dict[str, Format] = {}
"""All formats by name."""


def data_format(
    name: str,
    *,
    suffixes: Sequence[str] = (),
    recognizes: Callable[[str], bool] | None = None,
    options: Sequence[LoadOptionName] = ("test_fraction",),
    fallback: bool = False,
) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Register the decorated reader as a format.

    The arguments are those of `Format`. By default a format is recognized by the suffixes of its files. If the data
    have no test split, a reader holds out `test_fraction` of each class, by default 0.2. It raises `UsageError` for
    corrupt or inconsistent data.

    >>> import tempfile, numpy as np
    >>> from contraport.data import from_arrays, load
    >>> @data_format("numbers in a text", suffixes=[".dat"], options=[])
    ... def load_text(path, split):
    ...     return from_arrays(np.loadtxt(path, ndmin=2), name=path, split=split)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savetxt(f"{folder}/rows.dat", np.ones((4, 3)))
    ...     load(f"{folder}/rows.dat").shapes
    ((3,),)
    >>> del FORMATS["numbers in a text"]
    """

    def has_suffix(data: str) -> bool:
        return Path(data).suffix in suffixes and Path(data).is_file()

    def register(read: Callable[..., Dataset]) -> Callable[..., Dataset]:
        check(name not in FORMATS, f"data_format: there is a format {name!r} already.", "exists")
        FORMATS[name] = Format(tuple(suffixes), recognizes or has_suffix, read, tuple(options), fallback)
        return read

    return register


def find_format(data: str) -> Format | None:
    """Return the format that recognizes the data at a path, or None."""
    ordered = sorted(FORMATS.values(), key=lambda entry: entry.is_fallback)
    return next((entry for entry in ordered if entry.recognizes(data)), None)


for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
