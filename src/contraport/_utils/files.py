"""Atomic file writes, and checksums that detect damaged files.

The checksum of a file is in ``NAME.sha256`` beside it, in the format of the command ``sha256sum``. While a file is
replaced, its checksum file has a line for the old content and one for the new, so that the file passes the check
wherever the process is killed.
"""

from __future__ import annotations

import csv
import errno
import functools
import hashlib
import io
import json
import logging
import os
import re
import shutil
import struct
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import numpy as np
from numpy.lib.format import open_memmap

CHECKSUM_SUFFIX = ".sha256"  # suffix of the checksum file, added to the name of the file

MIN_MAPPED_BYTES = 2**26
"""Number of bytes from which an uncompressed array of an `.npz` file is memory-mapped instead of read."""

_ZIP_LOCAL_HEADER = struct.Struct("<26xHH")
"""Header before a member of a zip archive, which ends with the lengths of the name and of the extra field after it."""

_NPY_HEADER_READER_BY_VERSION = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
"""Readers of the header of an `.npy` file, by the version of the format."""


log = logging.getLogger("contraport.data")


def find_unused_path(path: Path) -> Path:
    """Return the path, with a number added if something exists there."""
    number, unused = 1, path
    while unused.exists():
        number += 1
        unused = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return unused


@contextmanager
def atomic_write(path: Path, *, checksum: bool = False) -> Iterator[Path]:
    """Context manager that yields a temporary path, which replaces `path` on success.

    A reader sees the old file or the new one, never a part. The temporary name keeps the suffix of `path`. Missing
    folders are made. With `checksum`, a checksum file is written too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex}{path.suffix}")
    try:
        yield temporary
        if checksum:
            write_checksum(temporary, name=path.name)
        _move_with_checksum_file(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
        checksum_path(temporary).unlink(missing_ok=True)


def list_leftovers(folder: Path) -> list[Path]:
    """List the temporary files and folders that killed processes left behind."""
    name = f".*-{'[0-9a-f]' * 32}"
    earlier = f".model-{'[0-9a-z_]' * 8}"  # a staging folder of an earlier version
    return [path for pattern in (name, f"{name}.*", earlier) for path in folder.glob(pattern)]


def delete_paths(paths: Iterable[Path]) -> None:
    """Delete files, folders and links, but not the targets of links."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


@contextmanager
def stage_files(folder: Path) -> Iterator[Path]:
    """Context manager that yields a staging folder for new files of `folder`.

    If the block succeeds, the files are moved to `folder` one by one, those in subfolders first. Missing folders are
    made.
    """
    temporary = folder.absolute().parent / f".{folder.name}-{uuid.uuid4().hex}"
    temporary.mkdir(parents=True)
    try:
        yield temporary
        folder.mkdir(exist_ok=True)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for file in sorted(files, key=lambda path: -len(path.parts)):
            if file.suffix != CHECKSUM_SUFFIX:  # moved with its file
                target = folder / file.relative_to(temporary)
                target.parent.mkdir(parents=True, exist_ok=True)
                _move_with_checksum_file(file, target)
    finally:
        shutil.rmtree(temporary)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json_or_none(path: Path) -> Any:
    """Return a JSON file's content, or None if it is missing or damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def write_npz(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed `.npz` file atomically."""
    with atomic_write(path) as temporary:
        np.savez_compressed(temporary, allow_pickle=False, **arrays)


def read_npz_arrays(path: str | Path, *, mapped: bool = False) -> dict[str, np.ndarray]:
    """Return all arrays of an `.npz` file by name, without unpickling.

    The file is closed even if it is damaged; NumPy leaves a damaged archive open if it opens the file itself.

    With `mapped`, uncompressed arrays of at least `MIN_MAPPED_BYTES` are memory-mapped, read-only. Their place in
    the file may be no multiple of the size of a number: NumPy can use such arrays, torch cannot.
    """
    with Path(path).open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it has one array without a name; name it .npy")
        arrays: dict[str, np.ndarray] = {}
        if mapped:
            with zipfile.ZipFile(path) as members:
                for member in members.infolist():
                    array = _map_npz_member_or_none(Path(path), members, member)
                    if array is not None:
                        arrays[member.filename.removesuffix(".npy")] = array
        for name in archive.files:
            arrays[name] = arrays.pop(name) if name in arrays else archive[name]  # in the order of the file
        return arrays


def _map_npz_member_or_none(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.memmap | None:
    """Memory-map an array of an `.npz` file, or return None if it must be read to memory.

    Its checksum is verified block by block, as it is when the member is read.
    """
    if member.file_size < MIN_MAPPED_BYTES:
        return None
    if member.compress_type != zipfile.ZIP_STORED:
        _log_compressed_file_read_into_memory(str(path))
        return None
    with archive.open(member) as content:
        version = np.lib.format.read_magic(content)
        if version not in _NPY_HEADER_READER_BY_VERSION:
            return None
        shape, is_fortran_ordered, dtype = _NPY_HEADER_READER_BY_VERSION[version](content)
        if is_fortran_ordered or dtype.kind not in "iuf" or len(shape) < 2:
            return None
        start = content.tell()
        while content.read(2**20):
            pass
    with path.open("rb") as file:
        file.seek(member.header_offset)
        lengths = _ZIP_LOCAL_HEADER.unpack(file.read(_ZIP_LOCAL_HEADER.size))
    offset = member.header_offset + _ZIP_LOCAL_HEADER.size + sum(lengths) + start
    return np.memmap(path, dtype, "r", offset, shape)


@functools.cache  # once for each file: the splits of a file are read one after the other
def _log_compressed_file_read_into_memory(path: str) -> None:
    """Log that a compressed file is read into memory."""
    log.info("%s is compressed, so it is read into memory. np.savez, or one .npy per view, makes it mappable", path)


def read_npy_array(path: str | Path, mmap_mode: Literal["r", "c"] | None = None) -> np.ndarray:
    """Return the array in an `.npy` file, without unpickling.

    Raises:
        ValueError: the file is an archive of arrays, which NumPy would read and leave open.
    """
    with Path(path).open("rb") as file:
        if file.read(4) in (b"PK\x03\x04", b"PK\x05\x06"):
            raise ValueError("it is an archive of arrays (.npz), or a damaged one")
    array: np.ndarray = np.load(path, mmap_mode, allow_pickle=False)
    return array


def preallocate_memmap(path: Path, shape: Sequence[int], dtype: str) -> np.memmap:
    """Create a memory-mapped `.npy` file for writing, with its disk space reserved.

    Without the reservation the file is sparse, and a write to it on a full disk kills the process with SIGBUS.

    Raises:
        OSError: the disk has not enough space.
    """
    array = open_memmap(path, mode="w+", dtype=dtype, shape=tuple(shape))
    if array.nbytes > 0:
        with path.open("rb+") as file:
            _reserve_disk_space(file, array.offset, array.nbytes)
    return array


def write_csv(path: Path, heading: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table as a `.csv` file atomically, with formulas escaped."""
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        _write_csv_rows(file, heading, rows)


def format_csv(heading: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Format a table as CSV, with spreadsheet formulas escaped.

    Texts that begin with ``=``, ``+``, ``-``, ``@``, a tab or a carriage return get an apostrophe before them. Numbers
    stay unchanged.

    >>> print(format_csv(["name", "score"], [["=1+1", -0.5], ["-2", "-2e-05"]]), end="")
    name,score
    '=1+1,-0.5
    -2,-2e-05
    """
    text = io.StringIO()
    _write_csv_rows(text, heading, rows)
    return text.getvalue()


def checksum_path(path: Path) -> Path:
    """Return the path of the checksum file that belongs to a file."""
    return path.with_name(path.name + CHECKSUM_SUFFIX)


def write_checksum(path: Path, *, name: str | None = None) -> None:
    """Write the checksum of a file into a file beside it.

    `name` is the future name of the file, if it will be renamed.
    """
    checksum = checksum_path(path)
    checksum.write_text(f"{_sha256(path)}  {name or path.name}\n", encoding="utf-8")
    _flush_to_disk(checksum)


def check_checksum_if_present(path: Path) -> None:
    """Raise `ValueError` if a file does not match its checksum file."""
    checksum = checksum_path(path)
    if not checksum.exists():
        return
    valid = [line.split()[0] for line in checksum.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    if _sha256(path) not in valid:
        raise ValueError(f"its content does not match {checksum.name}")


def _move_with_checksum_file(temporary: Path, path: Path) -> None:
    """Move a file and its checksum file, if any, to the final path."""
    _flush_to_disk(temporary)
    new_checksum, checksum = checksum_path(temporary), checksum_path(path)
    if not new_checksum.exists():
        os.replace(temporary, path)
        return
    old = checksum.read_bytes() if checksum.exists() else b""
    with atomic_write(checksum) as both:  # valid for the old file and the new one, wherever the process is killed
        both.write_bytes(new_checksum.read_bytes() + old)
    os.replace(temporary, path)
    os.replace(new_checksum, checksum)


def _write_csv_rows(file: TextIO, heading: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write heading and rows as CSV lines, with formulas escaped."""
    lines = csv.writer(file, lineterminator="\n")
    lines.writerows(map(_escape_formula, row) for row in chain([heading], rows))


def _escape_formula(value: object) -> object:
    """Put an apostrophe before text that a spreadsheet would treat as a formula."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    is_signed_number = re.fullmatch(r"[+-](\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-](inf|nan)", value, re.IGNORECASE)
    return value if is_signed_number else f"'{value}"


def _reserve_disk_space(file: BinaryIO, start: int, size: int) -> None:
    """Reserve disk space for a range of bytes of a file."""
    if hasattr(os, "posix_fallocate"):  # on Linux, not on macOS or Windows
        try:
            os.posix_fallocate(file.fileno(), start, size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # this file system does not support it
                raise
        else:
            return
    file.seek(start)
    zeros = bytes(min(size, 2**20))
    for left in range(size, 0, -len(zeros)):
        file.write(zeros[:left])


def _sha256(path: Path) -> str:
    """Return the SHA-256 checksum of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush_to_disk(path: Path) -> None:
    """Flush a file to the disk, to survive a power failure."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
