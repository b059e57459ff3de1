"""Memories of earlier embeddings, as a queue or a memory bank.

Both are buffers, so that checkpoints contain them. They are written with the embeddings of all processes, so that they
are equal on each. Embeddings are written after the step, so that no item is compared with itself within a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.distributed import gather
from contraport.objectives.inputs import ExtraNegatives


class EmbeddingMemory(nn.Module, ABC):
    """Base class of queues and banks that store embeddings for each view."""

    def __init__(self) -> None:
        super().__init__()
        self._staged: list[tuple[Tensor, Tensor]] = []

    @abstractmethod
    def get_positives_and_negatives(self, view: int, keys: Tensor, ids: Tensor) -> tuple[Tensor, ExtraNegatives | None]:
        """Return a view's positives, ``(b, d)``, and stored negatives, if any."""

    @abstractmethod
    def write(self, view_embeddings: Tensor, item_ids: Tensor) -> None:
        """Store the embeddings ``(b, views, d)`` of all views of the items."""

    def stage(self, keys: Sequence[Tensor], ids: Tensor) -> None:
        """Collect the embeddings of all views, ``(b, d)`` each, to store after the step."""
        # float32, also under amp: a moving average loses its small updates in bfloat16. Gathered, so that the memories
        # of all processes stay equal.
        self._staged.append((gather(torch.stack([key.detach() for key in keys], 1).float()), gather(ids)))

    def write_staged(self) -> None:
        """Move the collected embeddings to the queue or memory bank."""
        for keys, ids in self._staged:
            self.write(keys, ids)
        self._staged.clear()


class Queue(EmbeddingMemory):
    """FIFO queue of the most recent embeddings, which serve as negatives (MoCo).

    Args:
        size: number of embeddings per view.

    Source: He et al. (2020), Momentum contrast (MoCo), section 3.2.

    >>> queue = Queue(3, views=1, dimensions=1)
    >>> queue.write(torch.tensor([[[1.0]], [[2.0]]]), torch.arange(2))
    >>> queue.get_extra_negatives(0).embeddings.flatten().tolist()
    [1.0, 2.0]
    >>> queue.write(torch.tensor([[[3.0]], [[4.0]]]), torch.arange(2))
    >>> queue.get_extra_negatives(0).embeddings.flatten().tolist()
    [4.0, 2.0, 3.0]
    """

    embeddings: Tensor
    ids: Tensor
    written: Tensor  # number of embeddings per view written so far

    def __init__(self, size: int, views: int, dimensions: int) -> None:
        super().__init__()
        self.register_buffer("embeddings", torch.zeros(size, views, dimensions, dtype=torch.float32))
        self.register_buffer("ids", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("written", torch.tensor(0))

    def get_extra_negatives(self, view: int) -> ExtraNegatives:
        """Return at most `size` stored embeddings of a view, with item ids."""
        return ExtraNegatives(self.embeddings[: int(self.written), view], self.ids[: int(self.written)])

    def get_positives_and_negatives(self, view: int, keys: Tensor, ids: Tensor) -> tuple[Tensor, ExtraNegatives | None]:
        return keys, self.get_extra_negatives(view) if self.written > 0 else None

    def write(self, view_embeddings: Tensor, item_ids: Tensor) -> None:
        size, start = len(self.embeddings), int(self.written)
        slots = torch.arange(start, start + len(view_embeddings), device=view_embeddings.device)[-size:] % size
        self.embeddings[slots], self.ids[slots] = view_embeddings[-size:], item_ids[-size:]
        self.written += len(view_embeddings)


class MovingAverageBank(EmbeddingMemory):
    """Memory bank with a moving average embedding per item and view.

    Its entries are positives or random negatives. The moving average is exponential, with momentum 0.5, and is
    normalized after each update.

    Args:
        num_negatives: number of negatives drawn per step, with replacement.

    Source: Wu, Xiong, Yu and Lin (2018), Unsupervised feature learning via non-parametric instance discrimination;
    Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.4.

    >>> bank = MovingAverageBank(items=5, views=2, dimensions=4, num_negatives=3)
    >>> positives, negatives = bank.get_positives_and_negatives(1, torch.zeros(2, 4), ids=torch.tensor([4, 0]))
    >>> positives.shape, negatives.embeddings.shape
    (torch.Size([2, 4]), torch.Size([3, 4]))
    """

    embeddings: Tensor

    def __init__(self, items: int, views: int, dimensions: int, num_negatives: int) -> None:
        super().__init__()
        self.num_negatives = num_negatives
        self.register_buffer(
            "embeddings", F.normalize(torch.randn(items, views, dimensions, dtype=torch.float32), dim=2)
        )

    def get_positives_and_negatives(self, view: int, keys: Tensor, ids: Tensor) -> tuple[Tensor, ExtraNegatives]:
        # All processes seed the generator of the loss alike, so all draw the same entries; on the CPU, for any device.
        drawn = torch.randint(len(self.embeddings), (self.num_negatives,)).to(ids.device)
        return self.embeddings[ids, view], ExtraNegatives(self.embeddings[drawn, view], drawn)

    def write(self, view_embeddings: Tensor, item_ids: Tensor) -> None:
        averages = torch.lerp(F.normalize(view_embeddings, dim=2), self.embeddings[item_ids], 0.5)
        self.embeddings[item_ids] = F.normalize(averages, dim=2)
