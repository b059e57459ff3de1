"""Mismatched pairs for a cross-fit: items exchange their second views within small groups."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from contraport.data import Dataset
from contraport.data.duplicate_groups import group_by_content, reduce_duplicate_pairs
from contraport.data.splits import max_held_out_group_size
from contraport.seeding import numpy_generator

ExchangeGroup = tuple[Tensor, ...]
"""Two or three sets of items that exchange partners; the items of a set share content, mostly it is one item."""


def draw_exchange_groups(dataset: Dataset, *, seed: int) -> tuple[ExchangeGroup, ...]:
    """Draw random groups, each of two sets of items of similar size; items within a set have equal content.

    If the number of sets is odd, the last group has three.

    >>> from contraport.data import from_arrays
    >>> dataset = from_arrays((np.arange(7.0)[:, None], np.arange(7.0)[:, None]))
    >>> [len(group) for group in draw_exchange_groups(dataset, seed=0)]
    [2, 2, 3]
    """
    random, ids = numpy_generator("audit.exchange", seed), dataset.content_ids
    largest = max_held_out_group_size(len(dataset), None)
    set_of = np.arange(len(dataset)) if ids is None else group_by_content(ids, largest).group_ids
    sets = np.split(np.argsort(set_of, kind="stable"), np.bincount(set_of).cumsum()[:-1])
    order = random.permutation(len(sets))
    order = order[np.argsort([len(sets[number]) for number in order], kind="stable")]
    first, second = order[: len(order) - 1 : 2], order[1::2].copy()
    if ids is not None:
        content = ids.numpy()[[members[0] for members in sets]]
        reduce_duplicate_pairs(first, second, content, random)
    groups = [[one, other] for one, other in zip(first.tolist(), second.tolist(), strict=True)]
    if len(order) % 2:
        groups[-1].append(int(order[-1]))
    return tuple(tuple(torch.from_numpy(sets[number]) for number in group) for group in groups)


def rotate_partners(groups: tuple[ExchangeGroup, ...]) -> Tensor:
    """Return mismatched partners, int64 ``(n,)``: within a group, each item set gets the partners of the preceding set.

    >>> rotate_partners((tuple(torch.tensor([[0], [2]])), tuple(torch.tensor([[1], [3], [4]])))).tolist()
    [2, 4, 0, 1, 3]
    """
    partners = torch.empty(sum(len(items) for group in groups for items in group), dtype=torch.int64)
    for group in groups:
        for place, items in enumerate(group):
            others = group[place - 1]
            partners[items] = others[torch.arange(len(items)) % len(others)]
    return partners
