"""Mismatches of pairs that were not trained on: couples of items exchange their partners."""

from __future__ import annotations

import torch
from torch import Tensor

from contraport.seeding import torch_generator


def couples(items: int, *, seed: int) -> tuple[Tensor, ...]:
    """Return the items in groups of two, drawn at random; of an odd number the last has three.

    >>> [len(group) for group in couples(7, seed=0)]
    [2, 2, 3]
    """
    order = torch.randperm(items, generator=torch_generator("audit.exchange", seed))
    pairs = order[: items - items % 2 * 3].split(2)
    return (*pairs, order[items - 3 :]) if items % 2 else pairs


def exchanged(groups: tuple[Tensor, ...]) -> Tensor:
    """Return whose partner each item gets when those of a group pass theirs on, int64 ``(n,)``.

    >>> exchanged((torch.tensor([0, 2]), torch.tensor([1, 3, 4]))).tolist()
    [2, 4, 0, 1, 3]
    """
    partners = torch.empty(sum(map(len, groups)), dtype=torch.int64)
    for group in groups:
        partners[group] = group.roll(1)
    return partners
