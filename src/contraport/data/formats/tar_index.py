"""Where the members of tar archives lie: read once from their headers, then any member is one read away."""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from contraport.data.splits import Positions
from contraport.errors import UsageError, check, unreadable_error

_BLOCK = tarfile.BLOCKSIZE


class Member(NamedTuple):
    """A file in an archive: its path inside, and where its bytes are."""

    path: str
    offset: int
    size: int


def members(archive: str, ignored: Counter[str]) -> Iterator[Member]:
    """Yield the files in an uncompressed tar archive, in order, and count in `ignored` what else it holds.

    Nothing is ever unpacked: a path inside is a name, and leads nowhere.

    Raises:
        UsageError: the archive is compressed, corrupt or cut off.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            end = 0
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # else memory holds every header
                check(tar.offset > end, f"data: {archive} is corrupt: the member {info.name!r} has a size below 0.")
                end = tar.offset
                if info.isfile() and not info.issparse():
                    yield Member(info.name, info.offset_data, info.size)
                elif not info.isdir():
                    ignored["link, device, pipe or sparse file"] += 1
            _check_end(archive, tar.offset)
    except UsageError:
        raise
    except Exception as error:  # on hostile bytes the parser raises whatever it likes
        raise unreadable_error(f"data: {archive}", "an uncompressed tar archive", error) from error


@dataclass(frozen=True)
class Members:
    """One field of each sample of some archives, as bytes; each access opens the archive, so any process may read."""

    archives: tuple[str, ...]
    keys: tuple[str, ...]
    field: str
    numbers: np.ndarray  # (n,), which archive
    offsets: np.ndarray  # (n,)
    sizes: np.ndarray  # (n,)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, position: int) -> bytes:
        size = int(self.sizes[position])
        with open(self.archives[self.numbers[position]], "rb") as file:
            file.seek(int(self.offsets[position]))
            content = file.read(size)
        check(len(content) == size, f"data: {self.name(position)} is cut off; the archive was whole before.")
        return content

    def take(self, positions: Positions) -> Members:
        """Return the members of some samples."""
        keys = tuple(self.keys[position] for position in positions.tolist())
        return Members(
            self.archives, keys, self.field, self.numbers[positions], self.offsets[positions], self.sizes[positions]
        )

    def name(self, position: int) -> str:
        """Return the archive and the path of a member."""
        return f"{self.archives[self.numbers[position]]}: {self.keys[position]}.{self.field}"

    def source_files(self) -> Sequence[str]:
        """Return the files whose content they are."""
        return self.archives


def _check_end(archive: str, offset: int) -> None:
    """Raise unless the block of zeros that ends an archive is where its headers end; `tarfile` itself does not look."""
    with open(archive, "rb") as file:
        file.seek(offset)
        block = file.read(_BLOCK)
    check(len(block) == _BLOCK, f"data: {archive} is cut off after {offset} bytes.")
    check(not any(block), f"data: {archive} is corrupt: no header of a member at byte {offset}.")
