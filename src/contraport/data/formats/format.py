"""What a format of data is: how it is recognised, and what reads it; the table of all formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contraport.data.dataset import Dataset
from contraport.data.formats.column_roles import check_no_columns
from contraport.errors import check

Wish = Literal["image_size", "columns", "test_fraction", "ignore_labels"]


@dataclass(frozen=True)
class Format:
    """A row of the table of formats.

    Attributes:
        name: what it is called.
        suffixes: of the files that hold data in it.
        recognises: whether a path, as it was given, is of this format.
        read: returns one split of the data at a path: of the path, the split, and the wishes that it takes.
        takes: which of the wishes of `contraport.data.load` it is told of.
        rest: whether it is tried after all others, as it also recognises what is theirs.
    """

    name: str
    suffixes: tuple[str, ...]
    recognizes: Callable[[str], bool]
    read: Callable[..., Dataset]
    takes: tuple[Wish, ...]
    rest: bool

    def load(self, data: str, split: str, **wishes: Any) -> Dataset:
        """Return one split of the data at a path.

        Raises:
            UsageError: columns are named where there are none, or what the reader says.
        """
        if "columns" not in self.takes:
            check_no_columns(wishes.get("columns"), repr(data))
        dataset = self.read(data, split, **{wish: wishes[wish] for wish in self.takes})
        return dataset.without_labels() if wishes.get("ignore_labels") else dataset


FORMATS: dict[str, Format] = {}
"""All formats by their names."""


def data_format(
    name: str,
    *,
    suffixes: Sequence[str] = (),
    recognizes: Callable[[str], bool] | None = None,
    takes: Sequence[Wish] = ("test_fraction",),
    rest: bool = False,
) -> Callable[[Callable[..., Dataset]], Callable[..., Dataset]]:
    """Enter a reader in the table of formats; see `Format` for each.

    By default a format is recognised by the suffixes of its files.

    >>> from contraport.data import from_arrays, load
    >>> from contraport.data.formats import FORMATS, data_format
    >>> @data_format("numbers in a text", suffixes=[".dat"], takes=[])
    ... def load_text(path, split):
    ...     return from_arrays(np.loadtxt(path, ndmin=2), name=path, split=split)
    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savetxt(f"{folder}/rows.dat", np.ones((4, 3)))
    ...     load(f"{folder}/rows.dat").shapes
    ((3,),)
    >>> del FORMATS["numbers in a text"]
    """
    endings = tuple(suffixes)

    def is_such_a_file(data: str) -> bool:
        return Path(data).suffix in endings and Path(data).is_file()

    def enter(read: Callable[..., Dataset]) -> Callable[..., Dataset]:
        check(name not in FORMATS, f"data_format: there is a format {name!r} already.")
        FORMATS[name] = Format(name, endings, recognizes or is_such_a_file, read, tuple(takes), rest)
        return read

    return enter


def find_format(data: str) -> Format | None:
    """Return the format of the data at a path, or none where no format is recognised.

    >>> find_format("no/such/folder") is None
    True
    """
    ordered = sorted(FORMATS.values(), key=lambda entry: entry.rest)
    return next((entry for entry in ordered if entry.recognizes(data)), None)


def suffixes() -> list[str]:
    """Return the suffixes of all files that hold data."""
    return [suffix for entry in FORMATS.values() for suffix in entry.suffixes]
