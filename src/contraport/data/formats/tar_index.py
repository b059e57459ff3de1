"""Index of the members of tar archives, built from their headers, so that each member is read directly."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from contraport.data.splits import Positions
from contraport.data.stores import UndecodedItems
from contraport.errors import UsageError, check, unreadable_error

_BLOCK = tarfile.BLOCKSIZE


class ArchiveMember(NamedTuple):
    """Path, position and size of a file in a tar archive.

    Attributes:
        path: path inside the archive.
        offset: position of its first byte.
        size: number of bytes.
    """

    path: str
    offset: int
    size: int


def iterate_members(archive: str, ignored: Counter[str]) -> Iterator[ArchiveMember]:
    """Yield the files in an uncompressed tar archive, in order, and count everything else in `ignored`.

    Nothing is extracted: a path inside is only a name.

    Raises:
        UsageError: the archive is compressed, corrupt or truncated.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            end = 0
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # otherwise all headers stay in memory
                message = f"data: {archive} is corrupt: the member {info.name!r} has a negative size."
                check(tar.offset > end, message, "unreadable")
                end = tar.offset
                if info.isfile() and not info.issparse():
                    yield ArchiveMember(info.name, info.offset_data, info.size)
                elif not info.isdir():
                    ignored["link, device, pipe or sparse file"] += 1
            _check_end(archive, tar.offset)
    except UsageError:
        raise
    except Exception as error:  # the parser raises anything on hostile bytes
        raise unreadable_error(f"data: {archive}", "an uncompressed tar archive", error) from error


def _check_end(archive: str, offset: int) -> None:
    """Raise `UsageError` unless the archive ends with a block of zeros, which `tarfile` does not check."""
    with open(archive, "rb") as file:
        file.seek(offset)
        block = file.read(_BLOCK)
    check(len(block) == _BLOCK, f"data: {archive} is truncated after {offset} bytes.", "unreadable")
    check(not any(block), f"data: {archive} is corrupt: no header of a member at byte {offset}.", "unreadable")


@dataclass(frozen=True)
class ArchiveMembers(UndecodedItems):
    """One field of each sample in tar archives, as a sequence of undecoded items.

    Each access opens the archive, so that processes can share the object.

    Attributes:
        archives: path of each archive.
        keys: key of each sample.
        field: suffix of the members.
        archive_indices: index of the archive of each sample, ``(n,)``.
        offsets: position of each member in its archive, in bytes, ``(n,)``.
        sizes: size of each member in bytes, ``(n,)``.
    """

    archives: tuple[str, ...]
    keys: tuple[str, ...]
    field: str
    archive_indices: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, position: int) -> bytes:
        size = int(self.sizes[position])
        with open(self.archives[self.archive_indices[position]], "rb") as file:
            file.seek(int(self.offsets[position]))
            content = file.read(size)
        message = f"data: {self.item_name(position)} is truncated; the archive was complete before."
        check(len(content) == size, message, "unreadable")
        return content

    def take(self, positions: Positions) -> ArchiveMembers:
        keys = tuple(self.keys[position] for position in positions.tolist())
        places = self.archive_indices[positions], self.offsets[positions], self.sizes[positions]
        return ArchiveMembers(self.archives, keys, self.field, *places)

    def item_name(self, position: int) -> str:
        return f"{self.archives[self.archive_indices[position]]}: {self.keys[position]}.{self.field}"

    def source_files(self) -> Sequence[str]:
        return self.archives
