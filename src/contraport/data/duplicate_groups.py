"""Content digests of items, and groups of items that share content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport._utils.text_bytes import is_text_batch
from contraport.errors import check_regular_file

if TYPE_CHECKING:
    from contraport.data.splits import Codes
    from contraport.data.stores import ItemFilesOrBytes


def digest_byte_strings(contents: Iterable[bytes]) -> Tensor:
    """Return the digest of each byte string, int64 ``(n,)``.

    64 bits: among a million items the chance that any two different ones collide is 3e-8.

    >>> a, b, c = digest_byte_strings([b"one", b"two", b"one"]).tolist()
    >>> a == c, a == b
    (True, False)
    """
    digests = [hashlib.blake2b(content, digest_size=8).digest() for content in contents]
    return torch.from_numpy(np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64))


def digest_rows(view: Tensor) -> Tensor:
    """Return the digest of each row, int64 ``(n,)``, ignoring the padding of texts.

    >>> a, b, c = digest_rows(torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]])).tolist()
    >>> a == c, a == b
    (True, False)
    """
    rows = view.contiguous().view(len(view), -1).numpy()
    if is_text_batch(view):
        return digest_byte_strings(row.tobytes().rstrip(b"\0") for row in rows)
    return digest_byte_strings(map(memoryview, rows))  # type: ignore[arg-type]  # hashed without a copy


def digest_encoded_items(items: ItemFilesOrBytes, positions: Sequence[int]) -> Tensor:
    """Return a digest of each item's encoded bytes, int64 ``(m,)``.

    An item that cannot be read is digested by its name; decoding decides later whether it is left out.
    """

    def digest(position: int) -> int:
        try:
            content = items[position]
            if isinstance(content, Path):
                check_regular_file("data", content)  # reading a pipe or a device would never end
                content = content.read_bytes()
        except Exception:  # a missing file, or a corrupt archive or table: each format raises its own errors
            content = f"unreadable: {items.describe_item_location(position)}".encode()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)

    digests, block = [], 1024  # a pool starts all calls at once, so blocks bound the memory
    with ThreadPoolExecutor() as pool:  # hashing and reading release the interpreter's lock
        for first in range(0, len(positions), block):
            digests += list(pool.map(digest, positions[first : first + block]))
    return torch.tensor(digests, dtype=torch.int64)


def assign_content_ids_by_view(digests: Tensor, present: Tensor | None = None) -> Tensor:
    """Assign an integer id to each distinct content of each view, ``(n, views)``.

    Args:
        digests: content digest of each item in each view, int64 ``(n, views)``.
        present: which items have which views; a missing view equals no other.

    >>> assign_content_ids_by_view(torch.tensor([[7, 1], [7, 2]]), torch.tensor([[True, True], [True, False]])).tolist()
    [[0, 0], [0, -2]]
    """
    ids = torch.stack([number_by_first_occurrence(column) for column in digests.unbind(1)], dim=1)
    return ids if present is None else torch.where(present, ids, -1 - torch.arange(len(ids))[:, None])


class SharedContentGroups(NamedTuple):
    """Groups of items that share content in at least one view.

    Attributes:
        group_ids: index of the group of each item, int64 ``(n,)``.
        used_view_indices: indices of the views whose content defines the groups; the others are ignored.
    """

    group_ids: Codes
    used_view_indices: tuple[int, ...]


def group_by_shared_content(view_content_ids: Tensor, max_group_size: float) -> SharedContentGroups:
    """Group items that share content, directly or through other items.

    A view that would make a group of more than `max_group_size` items, such as captions that name only a class, is
    ignored. Views with small groups come first, and the first is always used.
    `view_content_ids` are the `assign_content_ids_by_view` of all items, ``(n, views)``.

    >>> ids = torch.tensor([[0, 0], [0, 1], [2, 1], [3, 3]])
    >>> group_by_shared_content(ids, max_group_size=3)
    SharedContentGroups(group_ids=array([0, 0, 0, 1]), used_view_indices=(0, 1))
    >>> group_by_shared_content(ids, max_group_size=2)
    SharedContentGroups(group_ids=array([0, 0, 1, 2]), used_view_indices=(0,))
    """
    sizes = [int(torch.unique(column, return_counts=True)[1].max()) for column in view_content_ids.unbind(1)]
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    order = sorted(range(len(sizes)), key=lambda view: (sizes[view], view))
    groups, views = np.arange(len(view_content_ids)), list[int]()
    for view in order:
        # Groups that share a value of the view are joined: the components of the graph of groups and values.
        codes = np.unique(view_content_ids[:, view].numpy(), return_inverse=True)[1]
        size = int(groups.max()) + 1 + int(codes.max()) + 1
        edges = coo_array((np.ones(len(groups), dtype=np.int8), (groups, int(groups.max()) + 1 + codes)), (size, size))
        components = connected_components(edges, directed=False)[1]
        joined = np.unique(components[groups], return_inverse=True)[1]
        if not views or np.bincount(joined).max() <= max_group_size:
            groups = joined
            views.append(view)
    return SharedContentGroups(number_by_first_occurrence(torch.from_numpy(groups)).numpy(), tuple(sorted(views)))


def number_by_first_occurrence(values: Tensor) -> Tensor:
    """Number distinct values from 0 in order of first occurrence, int64 ``(n,)``.

    >>> number_by_first_occurrence(torch.tensor([7, 3, 7, 5])).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(values.numpy(), return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return torch.from_numpy(order[inverse].astype(np.int64))


def first_index_by_group(group_numbers: Tensor) -> Tensor:
    """Return the index of the first item of each group, by group number.

    >>> first_index_by_group(torch.tensor([1, 0, 1, 2])).tolist()
    [1, 0, 3]
    """
    firsts = torch.full((int(group_numbers.max()) + 1 if len(group_numbers) > 0 else 0,), len(group_numbers))
    return firsts.scatter_reduce(0, group_numbers, torch.arange(len(group_numbers)), "amin")
