"""Mismatches of pairs that were not trained on: couples of items exchange their partners."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from contraport.data import Dataset
from contraport.data.duplicate_groups import content_groups, separate
from contraport.data.splits import max_group_size
from contraport.seeding import generator

Couple = tuple[Tensor, ...]
"""Two groups of items that exchange partners, or three; a group shares content, and is one item where none repeats."""


def couples(dataset: Dataset, *, seed: int) -> tuple[Couple, ...]:
    """Return the items in groups of shared content, two groups of similar size at a time, drawn at random.

    Of an odd number the last couple has three.

    >>> from contraport.data import from_arrays
    >>> dataset = from_arrays((np.arange(7.0)[:, None], np.arange(7.0)[:, None]))
    >>> [len(couple) for couple in couples(dataset, seed=0)]
    [2, 2, 3]
    """
    random, ids = generator("audit.exchange", seed), dataset.content_ids
    groups = np.arange(len(dataset)) if ids is None else content_groups(ids, max_group_size(len(dataset), None)).groups
    by_group = np.argsort(groups, kind="stable")
    members = np.split(by_group, np.bincount(groups).cumsum()[:-1])
    order = random.permutation(len(members))
    order = order[np.argsort([len(members[group]) for group in order], kind="stable")]
    first, second = order[: len(order) - 1 : 2], order[1::2].copy()
    if ids is not None:
        of_groups = ids.numpy()[[group[0] for group in members]]
        separate(first, second, of_groups, random)
    pairs = [[one, other] for one, other in zip(first.tolist(), second.tolist(), strict=True)]
    if len(order) % 2:
        pairs[-1].append(int(order[-1]))
    return tuple(tuple(torch.from_numpy(members[group]) for group in pair) for pair in pairs)


def exchanged(couples: tuple[Couple, ...]) -> Tensor:
    """Return whose partner each item gets when each group of a couple takes those of the one before, int64 ``(n,)``.

    >>> exchanged((tuple(torch.tensor([[0], [2]])), tuple(torch.tensor([[1], [3], [4]])))).tolist()
    [2, 4, 0, 1, 3]
    """
    partners = torch.empty(sum(len(group) for couple in couples for group in couple), dtype=torch.int64)
    for couple in couples:
        for place, group in enumerate(couple):
            others = couple[place - 1]
            partners[group] = others[torch.arange(len(group)) % len(others)]
    return partners
