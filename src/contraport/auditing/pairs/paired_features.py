"""The two sides of all pairs: what an encoder says of each view of each item, and who is near whom on each side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.auditing.pairs.canonical_correlation import Canonical, canonical
from contraport.errors import check

NEIGHBORS = 15
"""How many neighbours of an item are asked."""

MIN_PAIRS = 50
"""With fewer there is too little to tell a wrong pair by."""

REFERENCES = 4_096
"""Of how many items at most it is known how near they are to each, by which ranks and crowds are told."""

MARKS = 64
"""At how many ranks their similarities are kept, each about a tenth behind the one before."""

TIED = 1e-6
"""Similarities that differ by no more are the same: rounding alone tells equal items apart so."""

_BLOCK_VALUES = 2**24


class ItemPairs(NamedTuple):
    """Some pairs: item `first` of the first side with item `second` of the second, int64 ``(p,)`` each."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True, eq=False)
class PairedFeatures:
    """What is known of `n` items by two views each.

    Args:
        features: ``(n, F)`` and ``(n, G)``, each in a space of its own; rows of any length but zero.
        embeddings: ``(n, P)`` each, in one space where the two of an item are to be alike; None where there are none.
        kept: int64 ``(m,)``, the items among which neighbours are looked for; default: all.
        neighbors: how many neighbours are asked.

    Raises:
        UsageError: fewer than 50 pairs, unequal numbers of rows, NaN or infinity, or too few kept.

    >>> u = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    >>> sides = PairedFeatures((u, u.flip(1)))
    >>> sides.nearest[0].shape
    torch.Size([60, 17])
    """

    features: tuple[Tensor, Tensor]
    embeddings: tuple[Tensor, Tensor] | None = None
    kept: Tensor | None = None
    neighbors: int = NEIGHBORS

    def __post_init__(self) -> None:
        given = {"features": self.features} | ({} if self.embeddings is None else {"embeddings": self.embeddings})
        check_pair_count(len(self.features[0]))
        for name, both in given.items():
            for side, values in enumerate(both):
                good = values.ndim == 2 and len(values) == len(self)
                check(good, f"{name}[{side}]: expected ({len(self)}, d), got {tuple(values.shape)}.")
                bad = int((~values.isfinite().all(dim=1)).sum())
                check(bad == 0, f"{name}[{side}]: expected finite numbers, got NaN or infinity in {bad} rows.")
            object.__setattr__(self, name, tuple(F.normalize(values.float(), dim=1) for values in both))
        if self.embeddings is not None:
            widths = [values.shape[1] for values in self.embeddings]
            check(widths[0] == widths[1], f"embeddings: expected two of one width, got {widths}.")
        fewest = self.neighbors + 2
        check(len(self.among) >= fewest, f"kept: expected {fewest} items at least, got {len(self.among)}.")

    def __len__(self) -> int:
        return len(self.features[0])

    @property
    def among(self) -> Tensor:
        """The items among which neighbours are looked for, ``(m,)``."""
        return torch.arange(len(self), device=self.features[0].device) if self.kept is None else self.kept

    @property
    def given(self) -> ItemPairs:
        """The pairs as the data have them, of which some may be wrong."""
        items = torch.arange(len(self), device=self.features[0].device)
        return ItemPairs(items, items)

    @cached_property
    def references(self) -> Tensor:
        """The kept items that tell what is near, ``(r,)``: all of them, or where they are many some."""
        return self.among[torch.linspace(0, len(self.among) - 1, min(len(self.among), REFERENCES)).round().long()]

    @cached_property
    def nearest(self) -> tuple[Tensor, Tensor]:
        """The kept items nearest to each item on each side, ``(n, neighbors + 2)``, itself among them where kept."""
        return self._nearest(self.features[0]), self._nearest(self.features[1])

    def surprise(self, side: int, items: Tensor, others: Tensor) -> Tensor:
        """Return how near some others are to each item on a side, by rank: ``(p, k)`` of ``(p,)`` and ``(p, k)``.

        It is minus the log of the share of the kept items that are at least as near: of one drawn at random 1 on
        average, whatever the space. Those that are equally near, as equal items are, count as one group.
        """
        values, (ranks, marks) = self.features[side], self._marks[side]
        parts = zip(*(split_rows(one, others.shape[1] * values.shape[1]) for one in (items, others)), strict=True)
        near = torch.cat([torch.einsum("pf,pkf->pk", values[i], values[k]) for i, k in parts])
        passed = torch.searchsorted(-marks[items], TIED - near, right=True)
        return -ranks[(passed - 1).clamp(min=0)].log()

    @cached_property
    def _marks(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Of each side some ranks as shares ``(r,)``, and for each item how near the kept item of that rank is."""
        return self._marks_of(self.features[0]), self._marks_of(self.features[1])

    def _marks_of(self, values: Tensor) -> tuple[Tensor, Tensor]:
        some = self.references
        number = len(some) - 1  # but itself
        ranks = torch.logspace(0, math.log10(number), MARKS).round().clamp(max=number).unique().to(values.device)
        found = []
        for rows, items in zip(*(split_rows(one, len(some)) for one in (values, self.given.first)), strict=True):
            likeness = (rows @ values[some].T).masked_fill(items[:, None] == some, -torch.inf)
            found.append(_ascending(likeness)[:, -ranks.long()])
        return ranks / number, torch.cat(found)

    @cached_property
    def canonical(self) -> Canonical:
        """What each side tells of the other, fitted to the kept pairs by folds."""
        return canonical(self.features, self.among)

    @cached_property
    def crowding(self) -> tuple[Tensor, Tensor]:
        """The mean similarity of each embedding to its nearest on the other side, ``(n,)`` each."""
        assert self.embeddings is not None
        x, y = self.embeddings
        return crowding(x, y, self.neighbors), crowding(y, x, self.neighbors)

    def _nearest(self, values: Tensor) -> Tensor:
        among, number = values[self.among], self.neighbors + 2
        found = [(rows @ among.T).topk(number, 1).indices for rows in split_rows(values, len(among))]
        return self.among[torch.cat(found)]

    def neighbors_of(self, pairs: ItemPairs) -> tuple[Tensor, Tensor]:
        """Return the neighbours of both members of each pair, ``(p, neighbors)``, without the two items themselves.

        An item would otherwise vouch for its own pair, and a re-paired one for the pair that it was taken from.
        """
        own = torch.stack(pairs, dim=1)
        return self._others(self.nearest[0][pairs.first], own), self._others(self.nearest[1][pairs.second], own)

    def _others(self, nearest: Tensor, own: Tensor) -> Tensor:
        is_own = (nearest[:, :, None] == own[:, None]).any(dim=2)
        order = is_own.to(torch.uint8).argsort(dim=1, stable=True)[:, : self.neighbors]
        return nearest.gather(1, order)


def crowding(values: Tensor, others: Tensor, number: int) -> Tensor:
    """Return the mean similarity of each unit vector, ``(p, d)``, to the nearest of some others, ``(n, d)``."""
    blocks = split_rows(values, len(others))
    return torch.cat([(rows @ others.T).topk(number, 1).values.mean(dim=1) for rows in blocks])


def _ascending(values: Tensor) -> Tensor:
    """Return the entries of each row in order. NumPy, which asks for no places, takes a thirtieth of torch's time."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy(), axis=1))
    return values.sort(dim=1).values


def split_rows(values: Tensor, width: int) -> tuple[Tensor, ...]:
    """Return the rows of a tensor in blocks, of which each has at most some 16 million entries per `width`."""
    blocks: tuple[Tensor, ...] = values.split(max(1, _BLOCK_VALUES // max(1, width)))
    return blocks


def gather_mean(values: Tensor, items: Tensor) -> Tensor:
    """Return the mean of the rows of some items, ``(p, F)``, of items ``(p, k)``, without a copy of each row."""
    return F.embedding_bag(items, values, mode="mean")


def check_pair_count(pairs: int) -> None:
    """Raise `UsageError` where there are too few pairs to judge any.

    >>> check_pair_count(20)
    Traceback (most recent call last):
    contraport.errors.UsageError: data: expected 50 pairs at least, to tell wrong ones from, got 20.
    """
    check(pairs >= MIN_PAIRS, f"data: expected {MIN_PAIRS} pairs at least, to tell wrong ones from, got {pairs}.")
