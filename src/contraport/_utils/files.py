"""Files that are written whole or not at all, and checksums that tell whether they are still what was written.

A checksum stands beside its file, under its name and ``.sha256``, in the format of the command ``sha256sum``. While the
file is replaced it has a line for the old content and one for the new, so a process that is killed leaves no good file
that its checksum does not know.
"""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
from numpy.lib.format import open_memmap

SUFFIX = ".sha256"

_ZEROS = 2**20
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-](\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-](inf|nan)", re.IGNORECASE)


@contextmanager
def replacing(path: Path, *, checksum: bool = False) -> Iterator[Path]:
    """Give a temporary path beside `path` that takes its place when the block ends well, and is removed if it fails.

    A reader sees the old file or the new one, never half of one. The temporary name keeps the suffix of `path`. With
    `checksum`, one is written beside it.
    """
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        if checksum:
            write_checksum(temporary, name=path.name)
        _move(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        checksum_path(temporary).unlink(missing_ok=True)


def halves(folder: Path) -> Iterator[Path]:
    """Return the temporary files of a folder that a killed process left."""
    return folder.glob(f".*-{'[0-9a-f]' * 32}.*")


@contextmanager
def atomic_write_folder(folder: Path) -> Iterator[Path]:
    """Give a temporary folder beside `folder`, whose files go there, each as a whole, when the block ends well.

    Those in folders within it go first.
    """
    with tempfile.TemporaryDirectory(dir=folder.absolute().parent, prefix=f".{folder.name}-") as temporary:
        yield Path(temporary)
        folder.mkdir(exist_ok=True)
        files = sorted(path for path in Path(temporary).rglob("*") if path.is_file())
        for file in sorted(files, key=lambda path: -len(path.parts)):
            if file.suffix != SUFFIX:  # which comes with its file
                place = folder / file.relative_to(temporary)
                place.parent.mkdir(parents=True, exist_ok=True)
                _move(file, place)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds, or None where there is none, or it is damaged.

    >>> read_json(Path("missing.json")) is None
    True
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed `.npz` file whole or not at all."""
    with replacing(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def create_memmap(path: Path, shape: Sequence[int], dtype: str) -> np.memmap:
    """Create an `.npy` file, mapped to memory for writing, whose space on the disk is reserved.

    A file that is only given its length is sparse: a page of it that finds the disk full ends the process by SIGBUS.

    Raises:
        OSError: there is not enough space.
    """
    array = open_memmap(path, mode="w+", dtype=dtype, shape=tuple(shape))
    if array.nbytes > 0:
        with path.open("rb+") as file:
            _reserve(file, array.offset, array.nbytes)
    return array


def write_csv(path: Path, heading: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as a `.csv` file whole or not at all; see `format_csv`."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        _write_rows(file, heading, rows)


def format_csv(heading: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV that a spreadsheet takes no cell of for a formula.

    Texts that begin with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return get an apostrophe before them; numbers
    stay as they are.

    >>> print(format_csv(["name", "score"], [["=1+1", -0.5], ["-2", "-2e-05"]]), end="")
    name,score
    '=1+1,-0.5
    -2,-2e-05
    """
    text = io.StringIO()
    _write_rows(text, heading, rows)
    return text.getvalue()


def checksum_path(path: Path) -> Path:
    """Return where the checksum of a file is.

    >>> checksum_path(Path("model.safetensors")).name
    'model.safetensors.sha256'
    """
    return path.with_name(path.name + SUFFIX)


def write_checksum(path: Path, *, name: str | None = None) -> None:
    """Write the checksum of a file beside it, as that of `name`, which it will be called."""
    beside = checksum_path(path)
    beside.write_text(f"{_digest(path)}  {name or path.name}\n", encoding="utf-8")
    _to_disk(beside)


def check_checksum(path: Path) -> None:
    """Raise `ValueError` unless a file is what its checksum was written for; a file without one passes."""
    beside = checksum_path(path)
    if not beside.exists():
        return
    known = [line.split()[0] for line in beside.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    if _digest(path) not in known:
        raise ValueError(f"its content is not what {beside.name} was written for")


def _move(temporary: Path, path: Path) -> None:
    """Put a file in its place, and with it the checksum that is beside it, if one is."""
    _to_disk(temporary)
    new, beside = checksum_path(temporary), checksum_path(path)
    if not new.exists():
        os.replace(temporary, path)
        return
    known = beside.read_bytes() if beside.exists() else b""
    with replacing(beside) as both:
        both.write_bytes(new.read_bytes() + known)
    os.replace(temporary, path)
    os.replace(new, beside)


def _write_rows(file: TextIO, heading: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    lines = csv.writer(file, lineterminator="\n")
    lines.writerows(map(_cell, row) for row in chain([heading], rows))


def _cell(value: object) -> object:
    """Return a cell of a table, an apostrophe before a text that a spreadsheet would take for a formula."""
    formula = isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value)
    return f"'{value}" if formula else value


def _reserve(file: BinaryIO, start: int, size: int) -> None:
    """Give bytes of a file space on the disk; what they hold is lost where the system can only write them."""
    if hasattr(os, "posix_fallocate"):  # Linux has it, macOS and Windows have not
        try:
            os.posix_fallocate(file.fileno(), start, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not of this file system
                raise
        else:
            return
    file.seek(start)
    zeros = bytes(min(size, _ZEROS))
    for first in range(0, size, _ZEROS):
        file.write(zeros[: size - first])


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_disk(path: Path) -> None:
    """Wait until a file is on the disk itself: what is moved before may be empty after a power failure."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
