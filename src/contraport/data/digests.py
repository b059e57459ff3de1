"""Content digests of items: equal content has equal digests, whatever its name, its place or its file format."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from contraport._utils.text_tensors import is_text_batch
from contraport.data.stores import Store
from contraport.errors import check_regular_file

if TYPE_CHECKING:
    from contraport.data.decoding import EncodedImages

_READ_TOGETHER, _FETCHED_TOGETHER = 1024, 64


def digest_contents(contents: Iterable[bytes]) -> Tensor:
    """Return a digest of each content, int64 ``(n,)``.

    64 bits: among a million items the chance that any two different ones are taken for equal is 3e-8.

    >>> a, b, c = digest_contents([b"one", b"two", b"one"]).tolist()
    >>> a == c, a == b
    (True, False)
    """
    digests = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64))


def digest_rows(view: Tensor) -> Tensor:
    """Return a digest of each row of a view, int64 ``(n,)``; the zeros that fill up shorter texts do not count.

    >>> a, b, c = digest_rows(torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    rows = view.contiguous().view(len(view), -1).numpy()
    if is_text_batch(view):
        return digest_contents(row.tobytes().rstrip(b"\0") for row in rows)
    return digest_contents(map(memoryview, rows))  # type: ignore[arg-type]  # hashed without a copy


def digest_fetched(store: Store) -> Tensor:
    """Return the digests of what a store fetches, block by block, int64 ``(n, views)``."""
    blocks = torch.arange(len(store)).split(_FETCHED_TOGETHER)
    return torch.cat([torch.stack([digest_rows(view) for view in store.fetch(block)], dim=1) for block in blocks])


def digest_encoded(images: EncodedImages, positions: Sequence[int]) -> Tensor:
    """Return a digest of the bytes of the images, or other members of archives, at some positions, int64 ``(m,)``.

    What cannot be read is known by its name: whether it is left out is decided where images are decoded.
    """
    digests = []
    with ThreadPoolExecutor() as pool:  # hashing and reading release the interpreter's lock
        for first in range(0, len(positions), _READ_TOGETHER):
            part = positions[first : first + _READ_TOGETHER]
            digests += list(pool.map(partial(_digest_image, images), part))
    return torch.tensor(digests, dtype=torch.int64)


def _digest_image(images: EncodedImages, position: int) -> int:
    try:
        content = images[position]
        if isinstance(content, Path):
            check_regular_file("data", content)  # a pipe or a device would be read for ever
            content = content.read_bytes()
    except Exception:  # a missing file, or a corrupt archive or table, in as many ways as there are formats
        content = f"unreadable: {images.name(position)}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
