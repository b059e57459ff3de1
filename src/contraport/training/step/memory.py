"""Negatives from earlier batches: a queue of embeddings, or a bank with one entry per item.

Both are buffers, so they are in every checkpoint, and are written with the embeddings of all processes, so they are the
same on each. What a step brings is written after the step: a step never meets its own embeddings in them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.distributed import gather
from contraport.objectives.inputs import Negatives

BANK_MOMENTUM = 0.5


class Memory(nn.Module, ABC):
    """Keeps embeddings of earlier batches, apart for each view."""

    def __init__(self) -> None:
        super().__init__()
        self._fresh: list[tuple[Tensor, Tensor]] = []

    @abstractmethod
    def offer(self, view: int, keys: Tensor, ids: Tensor) -> tuple[Tensor, Negatives | None]:
        """Return the positives ``(b, d)`` and the further negatives of a view, or None while there are none.

        Args:
            view: the number of the view.
            keys: its fresh embeddings, ``(b, d)``.
            ids: which items they show, ``(b,)``.
        """

    @abstractmethod
    def write(self, keys: Tensor, ids: Tensor) -> None:
        """Take in the embeddings ``(b, views, d)`` of items ``(b,)``."""

    def keep(self, keys: Sequence[Tensor], ids: Tensor) -> None:
        """Remember the fresh embeddings of the views, ``(b, d)`` each, until the step is done."""
        self._fresh.append((gather(torch.stack([key.detach() for key in keys], 1).float()), gather(ids)))

    def after_step(self) -> None:
        """Write what the step brought."""
        for keys, ids in self._fresh:
            self.write(keys, ids)
        self._fresh.clear()


class Queue(Memory):
    """The last embeddings, first in, first out, as negatives.

    Args:
        size: how many of each view.
        views: how many views.
        dimensions: of an embedding.

    Source: He et al. (2020), Momentum contrast (MoCo), section 3.2.

    >>> queue = Queue(3, views=1, dimensions=1)
    >>> queue.write(torch.tensor([[[1.0]], [[2.0]]]), torch.arange(2))
    >>> queue.entries(0).embeddings.flatten().tolist()
    [1.0, 2.0]
    >>> queue.write(torch.tensor([[[3.0]], [[4.0]]]), torch.arange(2))
    >>> queue.entries(0).embeddings.flatten().tolist()
    [4.0, 2.0, 3.0]
    """

    embeddings: Tensor
    ids: Tensor
    written: Tensor

    def __init__(self, size: int, views: int, dimensions: int) -> None:
        super().__init__()
        self.register_buffer("embeddings", torch.zeros(size, views, dimensions))
        self.register_buffer("ids", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("written", torch.tensor(0))

    def entries(self, view: int) -> Negatives:
        """Return what is there of a view: fewer than `size` while the queue fills."""
        return Negatives(self.embeddings[: int(self.written), view], self.ids[: int(self.written)])

    def offer(self, view: int, keys: Tensor, ids: Tensor) -> tuple[Tensor, Negatives | None]:
        """Return the fresh embeddings and the queue."""
        return keys, self.entries(view) if self.written > 0 else None

    def write(self, keys: Tensor, ids: Tensor) -> None:
        """Put the embeddings in the place of the oldest."""
        size = len(self.embeddings)
        places = torch.arange(int(self.written), int(self.written) + len(keys), device=keys.device)[-size:] % size
        self.embeddings[places], self.ids[places] = keys[-size:], ids[-size:]
        self.written += len(keys)


class Bank(Memory):
    """One embedding per item and view, normalised: the item's own is the positive, some drawn at random are negatives.

    A new embedding is averaged into the old one, and the result normalised again.

    Args:
        items: how many items the data has.
        views: how many views.
        dimensions: of an embedding.
        draws: how many negatives are drawn at each step, with replacement.

    Source: Wu, Xiong, Yu and Lin (2018), Unsupervised feature learning via non-parametric instance discrimination;
    Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.4.

    >>> bank = Bank(items=5, views=2, dimensions=4, draws=3)
    >>> positives, negatives = bank.offer(1, torch.zeros(2, 4), ids=torch.tensor([4, 0]))
    >>> positives.shape, negatives.embeddings.shape
    (torch.Size([2, 4]), torch.Size([3, 4]))
    """

    embeddings: Tensor

    def __init__(self, items: int, views: int, dimensions: int, draws: int) -> None:
        super().__init__()
        self.draws = draws
        self.register_buffer("embeddings", F.normalize(torch.randn(items, views, dimensions), dim=2))

    def offer(self, view: int, keys: Tensor, ids: Tensor) -> tuple[Tensor, Negatives | None]:
        """Return the items' own entries and some drawn from the whole bank, the same on every process."""
        drawn = torch.randint(len(self.embeddings), (self.draws,)).to(ids.device)
        return self.embeddings[ids, view], Negatives(self.embeddings[drawn, view], drawn)

    def write(self, keys: Tensor, ids: Tensor) -> None:
        """Average the embeddings into the entries of their items."""
        mixed = torch.lerp(F.normalize(keys, dim=2), self.embeddings[ids], BANK_MOMENTUM)
        self.embeddings[ids] = F.normalize(mixed, dim=2)
