"""Content digests of items: items with equal content have equal digests, whatever their names or paths."""

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

from contraport._utils.text_bytes import is_text_batch
from contraport.errors import check_regular_file

if TYPE_CHECKING:
    from contraport.data.stores import Store, UndecodedItems

_READ_BLOCK, _FETCH_BLOCK = 1024, 64


def digest_contents(contents: Iterable[bytes]) -> Tensor:
    """Return the digest of each byte string, int64 ``(n,)``.

    64 bits: among a million items the chance that any two different ones collide is 3e-8.

    >>> a, b, c = digest_contents([b"one", b"two", b"one"]).tolist()
    >>> a == c, a == b
    (True, False)
    """
    digests = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64))


def digest_rows(view: Tensor) -> Tensor:
    """Return the digest of each row of a view, int64 ``(n,)``; the padding of texts is ignored.

    >>> a, b, c = digest_rows(torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    rows = view.contiguous().view(len(view), -1).numpy()
    if is_text_batch(view):
        return digest_contents(row.tobytes().rstrip(b"\0") for row in rows)
    return digest_contents(map(memoryview, rows))  # type: ignore[arg-type]  # hashed without a copy


def digest_items(store: Store) -> Tensor:
    """Return the digests of all items of a store, int64 ``(n, views)``, fetched block by block to bound memory."""
    blocks = torch.arange(len(store)).split(_FETCH_BLOCK)
    return torch.cat([torch.stack([digest_rows(view) for view in store.fetch(block)], dim=1) for block in blocks])


def digest_encoded(items: UndecodedItems, positions: Sequence[int]) -> Tensor:
    """Return the digests of the encoded bytes of the items at some positions, int64 ``(m,)``.

    An item that cannot be read is digested by its name; decoding decides later whether it is left out.
    """
    digests = []
    with ThreadPoolExecutor() as pool:  # hashing and reading release the interpreter's lock
        for first in range(0, len(positions), _READ_BLOCK):
            digests += list(pool.map(partial(_digest_item, items), positions[first : first + _READ_BLOCK]))
    return torch.tensor(digests, dtype=torch.int64)


def _digest_item(items: UndecodedItems, position: int) -> int:
    try:
        content = items[position]
        if isinstance(content, Path):
            check_regular_file("data", content)  # reading a pipe or a device would never end
            content = content.read_bytes()
    except Exception:  # a missing file, or a corrupt archive or table: each format raises its own errors
        content = f"unreadable: {items.item_name(position)}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
