"""Groups of items that share content: one image with several captions, a repeated query, copies of one file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

Codes = NDArray[np.int64]

_EXCHANGE_ROUNDS = 50


def content_ids(digests: Tensor, present: Tensor | None = None) -> Tensor:
    """Return numbers that are equal where two items have the same content in a view, int64 ``(n, views)``.

    Args:
        digests: of the content of each item in each view, int64 ``(n, views)``.
        present: which items have which views; a missing view is equal to no other.

    >>> content_ids(torch.tensor([[7, 1], [7, 2]]), torch.tensor([[True, True], [True, False]])).tolist()
    [[0, 0], [0, -2]]
    """
    ids = torch.stack([_first_occurrence(column) for column in digests.unbind(1)], dim=1)
    return ids if present is None else torch.where(present, ids, -1 - torch.arange(len(ids))[:, None])


def has_repeats(ids: Tensor) -> bool:
    """Return whether two items have the same content in any view."""
    return any(len(column.unique()) < len(column) for column in ids.unbind(1))


class ContentGroups(NamedTuple):
    """Items grouped by shared content.

    Attributes:
        groups: number of the group of each item, int64 ``(n,)``.
        views: numbers of the views by which they are grouped.
    """

    groups: Codes
    views: tuple[int, ...]


def content_groups(ids: Tensor, largest: float) -> ContentGroups:
    """Group the items that share the content of a view, directly or through others.

    A view whose repeats would join more than `largest` items, such as captions that name only a class, does not group
    items. Views with small groups come first, and the first always groups.

    >>> ids = torch.tensor([[0, 0], [0, 1], [2, 1], [3, 3]])
    >>> content_groups(ids, largest=3).groups.tolist(), content_groups(ids, largest=2)
    ([0, 0, 0, 1], ContentGroups(groups=array([0, 0, 1, 2]), views=(0,)))
    """
    sizes = [int(torch.unique(column, return_counts=True)[1].max()) for column in ids.unbind(1)]
    order = sorted(range(len(sizes)), key=lambda view: (sizes[view], view))
    groups, views = np.arange(len(ids)), list[int]()
    for view in order:
        joined = _joined(groups, ids[:, view].numpy())
        if not views or np.bincount(joined).max() <= largest:
            groups = joined
            views.append(view)
    _, first = np.unique(groups, return_index=True)
    renumbered = np.argsort(np.argsort(first))  # in the order in which groups first occur
    return ContentGroups(renumbered[groups].astype(np.int64), tuple(sorted(views)))


def _joined(groups: Codes, column: Codes) -> Codes:
    """Return the groups that remain when items with an equal number in a column are joined."""
    _, codes = np.unique(column, return_inverse=True)
    number = int(groups.max()) + 1
    edges = coo_array((np.ones(len(groups), dtype=np.int8), (groups, codes)), shape=(number, int(codes.max()) + 1))
    size = sum(edges.shape)
    square = coo_array((edges.data, (edges.coords[0], edges.coords[1] + number)), shape=(size, size))
    _, components = connected_components(square, directed=False)
    return np.unique(components[groups], return_inverse=True)[1]


def _first_occurrence(values: Tensor) -> Tensor:
    """Return numbers that are equal where the values are, in the order in which they first occur."""
    _, first, inverse = np.unique(values.numpy(), return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))
    return torch.from_numpy(order[inverse])


def exchange_partners(items: Tensor, ids: Tensor | None, random: np.random.Generator, *, by: int = 1) -> Tensor:
    """Return for each of some items another of them whose partner it gets, int64 ``(m,)``.

    The two differ in the content of every view, as otherwise the new pair would be a right one; an item keeps its own
    partner where no other was found that differs.

    Args:
        items: which items, in random order, int64 ``(m,)``.
        ids: `content_ids` of all items, ``(n, views)``; None where no content repeats.
        random: draws others for those that share content.
        by: how many places before it in the order that other one is, where no content repeats.

    >>> random = np.random.default_rng(0)
    >>> exchange_partners(torch.tensor([4, 2, 7]), None, random).tolist()
    [7, 4, 2]
    >>> partners = exchange_partners(torch.tensor([0, 1, 2, 3]), torch.tensor([[0], [0], [1], [1]]), random)
    >>> sorted(partners[:2].tolist()), sorted(partners[2:].tolist())
    ([2, 3], [0, 1])
    """
    if ids is None:
        return items.roll(by)
    first, second = items.numpy(), items.roll(by).numpy().copy()
    separate(first, second, ids.numpy(), random)
    same = (ids.numpy()[first] == ids.numpy()[second]).any(axis=1)
    return torch.from_numpy(np.where(same, first, second))


def separate(first: Codes, second: Codes, ids: Codes, random: np.random.Generator) -> None:
    """Reorder `second` in place so that as few pairs of items as can be found at random share content.

    Args:
        first: items, int64 ``(m,)``.
        second: their partners, a permutation of which is sought, int64 ``(m,)``.
        ids: `content_ids` of all items, ``(n, views)``.
        random: draws which pairs exchange their second items.
    """
    for _ in range(_EXCHANGE_ROUNDS):
        same = np.flatnonzero((ids[first] == ids[second]).any(axis=1))
        if len(same) == 0:
            return
        for one, other in zip(same, random.integers(len(first), size=len(same)), strict=True):
            new = ids[second[[other, one]]]
            if not (ids[first[[one, other]]] == new).any():
                second[one], second[other] = second[other], second[one]
