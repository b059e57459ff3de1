"""Random numbers per item of a batch, equal for any number of processes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contraport import distributed
from contraport.data.data_loader import LocalBatchOffset
from contraport.errors import check


class RandomDraws:
    """Random numbers for this process's items of a batch, (b, ...).

    `offset` gives the part that a process holds; None: all of the batch. All numbers are drawn for the whole batch from
    torch's global generator on the device, and those of the part are returned. So processes with equal seeds get the
    numbers of a single process, and their generators stay in the same state; the price is that each draws for all.

    Raises:
        UsageError: the part is beyond the batch.

    >>> torch.manual_seed(0) and RandomDraws(3, None).uniform(0, 1)[1:]
    tensor([0.7682, 0.0885])
    >>> torch.manual_seed(0) and RandomDraws(2, LocalBatchOffset(1, 3)).uniform(0, 1)
    tensor([0.7682, 0.0885])
    """

    def __init__(self, num_items: int, offset: LocalBatchOffset | None, device: torch.device | str = "cpu") -> None:
        offset = offset or LocalBatchOffset(0, num_items)
        end = offset.start + num_items
        message = f"offset: {num_items} items from {offset.start} on exceed the batch of {offset.global_batch_size}."
        check(end <= offset.global_batch_size, message, "range")
        self._part = slice(offset.start, end)
        self._total = offset.global_batch_size
        self._device = device

    def uniform(self, low: float, high: float, *item_shape: int) -> Tensor:
        """Return uniform random numbers (b, *item_shape) between `low` and `high`."""
        return low + (high - low) * torch.rand(self._total, *item_shape, device=self._device)[self._part]

    def log_uniform(self, low: float, high: float, *item_shape: int) -> Tensor:
        """Return log-uniform random numbers (b, *item_shape) between `low` and `high`."""
        # The function before the slice: the last bit of exp and cos may depend on a number's place in a tensor.
        exponents = (math.log(high) - math.log(low)) * torch.rand(self._total, *item_shape, device=self._device)
        return (math.log(low) + exponents).exp()[self._part]

    def rotation_cos_sin(self, max_radians: float, *item_shape: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of random angles between -`max_radians` and `max_radians`."""
        angles = max_radians * (2 * torch.rand(self._total, *item_shape, device=self._device) - 1)
        return angles.cos()[self._part], angles.sin()[self._part]

    def normal(self, *item_shape: int) -> Tensor:
        """Return standard normal random numbers (b, *item_shape)."""
        return torch.randn(self._total, *item_shape, device=self._device)[self._part]

    def integers(self, below: int) -> Tensor:
        """Return one random integer in [0, `below`) per item, as a tensor (b,)."""
        return torch.randint(below, (self._total,), device=self._device)[self._part]

    def span_mask(self, max_fraction: float, length: int) -> Tensor:
        """Return a mask (b, length) with a random span, at most `max_fraction` long."""
        fraction = self.uniform(0, max_fraction, 1)
        start = (1 - fraction) * self.uniform(0, 1, 1)
        places = (torch.arange(length, device=self._device) + 0.5) / length
        return (places >= start) & (places < start + fraction)

    def random_batch_items(self, item_values: Tensor) -> Tensor:
        """Return the values of a random item of the whole batch for each local item.

        Raises:
            UsageError: the other processes do not hold the rest of the batch.
        """
        whole = item_values if len(item_values) == self._total else distributed.gather(item_values)
        message = f"augment: mixup requires all {self._total} items of the batch, the processes have {len(whole)}."
        check(len(whole) == self._total, message, "incomplete_batch")
        return whole[torch.randint(self._total, (self._total,), device=self._device)[self._part]]
