"""Random numbers for the items of a batch, the same ones however many processes share it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contraport import distributed
from contraport.data.data_loader import Share
from contraport.errors import check


class Draws:
    """Random numbers for items, (b, ...), which are the whole batch or, with `share`, a part of it.

    Each is drawn for the whole batch from torch's own generator on the device of the items, and the part's are
    returned. So processes with equal seeds draw what one process would, and all leave their generators in one state;
    the price is that each draws for all.

    Raises:
        UsageError: a share that reaches beyond the batch.

    >>> torch.manual_seed(0) and Draws(torch.zeros(3, 5), None).uniform(0, 1)[1:]
    tensor([0.7682, 0.0885])
    >>> torch.manual_seed(0) and Draws(torch.zeros(2, 5), Share(start=1, total=3)).uniform(0, 1)
    tensor([0.7682, 0.0885])
    """

    def __init__(self, items: Tensor, share: Share | None) -> None:
        share = share or Share(0, len(items))
        end = share.start + len(items)
        within = f"share: expected the {len(items)} items from {share.start} on to be within {share.total}."
        check(end <= share.total, within)
        self._own = slice(share.start, end)
        self._total = share.total
        self._device = items.device

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers between `low` and `high`, (b, *shape)."""
        return low + (high - low) * torch.rand(self._total, *shape, device=self._device)[self._own]

    def log_uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Return numbers between `low` and `high` whose logarithm is uniform, (b, *shape)."""
        # The function before the slice: the last bit of exp and cos may depend on a number's place in a tensor.
        exponents = (math.log(high) - math.log(low)) * torch.rand(self._total, *shape, device=self._device)
        return (math.log(low) + exponents).exp()[self._own]

    def rotation(self, largest: float, *shape: int) -> tuple[Tensor, Tensor]:
        """Return cosine and sine of angles of at most `largest` radians either way, each (b, *shape)."""
        angles = largest * (2 * torch.rand(self._total, *shape, device=self._device) - 1)
        return angles.cos()[self._own], angles.sin()[self._own]

    def normal(self, *shape: int) -> Tensor:
        """Return standard normal numbers, (b, *shape)."""
        return torch.randn(self._total, *shape, device=self._device)[self._own]

    def integers(self, below: int) -> Tensor:
        """Return whole numbers from 0 on, below a limit, (b,)."""
        return torch.randint(below, (self._total,), device=self._device)[self._own]

    def span(self, largest: float, length: int) -> Tensor:
        """Return which of `length` places lie in a random span of at most a share `largest` of them, (b, length)."""
        share = self.uniform(0, largest, 1)
        start = (1 - share) * self.uniform(0, 1, 1)
        places = (torch.arange(length, device=self._device) + 0.5) / length
        return (places >= start) & (places < start + share)

    def partners(self, items: Tensor) -> Tensor:
        """Return for each item one of the whole batch, as likely itself as any other, (b, ...).

        Raises:
            UsageError: the rest of the batch is not held by the other processes.
        """
        whole = items if len(items) == self._total else distributed.gather(items)
        check(
            len(whole) == self._total,
            f"augment: mixup needs all {self._total} items of the batch, the processes hold {len(whole)}.",
        )
        return whole[torch.randint(self._total, (self._total,), device=self._device)[self._own]]
