"""Random mutations of files: changed, missing or additional bytes, and other kinds of files in their place."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

EXTREMES = tuple(struct.pack("<q", number) for number in (0, -1, 1, 2**30, 2**31 - 1, -(2**31), 2**62, -(2**63)))
WORDS = (
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b'""',
    b"[]",
    b"{}",
    b"true",
    b"9" * 5_000,
    b"\xff\xfe",
    b"\\u0000",
    b"../../x",
)
DOCUMENTS = (
    b"", b"\x00", b"null\n", b"[]\n", b"{}\n", b"3\n", b'"x"\n', b"[" * 5_000, b'{"a":' * 3_000, b"\xff" * 99,
    b"\n" * 99,
    b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", b"{", b"- 1\n- 2\n", b"PK\x05\x06" + b"\x00" * 18, b"\x80\x04N.",
    b"data: [1, 2]\nobjective: {}\n", b'{"rows": 3}\n', b'{"rows": {"trained": 3}}\n', b'{"step": 1}\n',
)  # fmt: skip


def mutate(file: Path, random: Random) -> str:
    """Mutate a file at random, and return the name of the mutation."""
    change = random.choice((*_BYTE_MUTATIONS, *_BYTE_MUTATIONS, *_FILE_MUTATIONS))
    if change in _BYTE_MUTATIONS:
        content = bytearray(file.read_bytes())
        file.write_bytes(change(content, random))
    else:
        change(file, random)
    return change.__name__.strip("_")


def _truncate(content: bytearray, random: Random) -> bytes:
    return bytes(content[: random.randrange(len(content) + 1)])


def _flip_bits(content: bytearray, random: Random) -> bytes:
    for _ in range(random.choice((1, 1, 4, 64)) if content else 0):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(content)


def _zero_range(content: bytearray, random: Random) -> bytes:
    start = random.randrange(len(content) + 1)
    length = min(random.choice((1, 8, 100, 4096)), len(content) - start)
    content[start : start + length] = bytes(length)
    return bytes(content)


def _write_extreme_number(content: bytearray, random: Random) -> bytes:
    size = random.choice((4, 8))
    start = random.randrange(len(content) // size + 1) * size
    content[start : start + size] = random.choice(EXTREMES)[:size]
    return bytes(content)


def _write_word(content: bytearray, random: Random) -> bytes:
    start = random.randrange(len(content) + 1)
    content[start : start + random.choice((0, 1, 5))] = random.choice(WORDS)
    return bytes(content)


def _replace_value(content: bytearray, random: Random) -> bytes:
    lines = bytes(content).split(b"\n")
    line = random.randrange(len(lines))
    before, colon, _ = lines[line].partition(b": ")
    lines[line] = before + colon + random.choice(WORDS) + (b"," if lines[line].endswith(b",") else b"")
    return b"\n".join(lines)


def _drop_or_repeat_range(content: bytearray, random: Random) -> bytes:
    start, end = sorted(random.randrange(len(content) + 1) for _ in range(2))
    content[start:end] = content[start:end] * random.choice((0, 2))
    return bytes(content)


def _randomize_content(content: bytearray, random: Random) -> bytes:
    return random.randbytes(len(content))


def _replace_content(content: bytearray, random: Random) -> bytes:
    return random.choice(DOCUMENTS)


def _remove(file: Path, random: Random) -> None:
    file.unlink()


def _make_folder(file: Path, random: Random) -> None:
    file.unlink()
    file.mkdir()


def _make_pipe(file: Path, random: Random) -> None:
    file.unlink()
    os.mkfifo(file)


def _make_link(file: Path, random: Random) -> None:
    file.unlink()
    file.symlink_to(random.choice(("/dev/zero", file.name, "nowhere", "..")))


def _copy_another_file(file: Path, random: Random) -> None:
    others = sorted(other for other in file.parent.iterdir() if other.is_file() and other != file)
    if others:
        shutil.copy(random.choice(others), file)


_BYTE_MUTATIONS: tuple[Callable[[bytearray, Random], bytes], ...] = (
    _truncate, _flip_bits, _zero_range, _write_extreme_number, _write_word, _replace_value,
    _drop_or_repeat_range, _randomize_content, _replace_content,
)  # fmt: skip
_FILE_MUTATIONS: tuple[Callable[[Path, Random], None], ...] = (
    _remove,
    _make_folder,
    _make_pipe,
    _make_link,
    _copy_another_file,
)
