"""Log-denominator with a moving average per item over the calls (SogCLR), for small batches."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from contraport.errors import check, check_integer, is_number
from contraport.objectives.divergences.attraction_repulsion import log_candidate_counts, log_mean_exp_by_group
from contraport.objectives.divergences.divergence import KernelDivergence, require_negatives, updates_averages
from contraport.objectives.divergences.logistic import log_moving_average
from contraport.objectives.inputs import check_values
from contraport.objectives.pair_masks import group_indices
from contraport.objectives.plan import BlockResult


class MovingAverageLogSum(nn.Module, KernelDivergence):
    """Log-denominator of SogCLR: a moving average, per item, of the mean kernel over its compared pairs.

    A batch updates the averages u of its own items, u <- momentum u + (1 - momentum) mean; the first mean of an item
    is its first average. The gradient is that of the batch's mean divided by the average, so that small batches have
    the gradient of a large one. In evaluation mode the averages are constant. The call needs ``ids``, (n,), in
    [0, items).

    Args:
        items: total number of items.
        momentum: weight of the past, in [0, 1).

    Raises:
        UsageError: items is not positive or the momentum out of range; in the call, ids are missing or out of range, or
            there is a single item.

    Source: Yuan et al. (2022), Provable stochastic optimization for global contrastive learning, algorithm 1, whose
    gamma is 1 - momentum.

    >>> import torch, contraport as cp
    >>> denominator = cp.MovingAverageLogSum(9)
    >>> loss = cp.Objective(cp.Joint("both"), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), denominator)
    >>> round(loss(torch.eye(3), torch.eye(3), ids=torch.arange(3)).item(), 4)
    -1.0
    """

    requires_ids: ClassVar[bool] = True

    log_average: Tensor

    def __init__(self, items: int, momentum: float = 0.1) -> None:
        super().__init__()
        check_integer("items", items)
        check(is_number(momentum) and 0 <= momentum < 1, f"momentum: must be a number in [0, 1), got {momentum!r}.")
        self.momentum = momentum
        self.register_buffer("log_average", torch.full((items,), math.nan))

    def forward(self, result: BlockResult) -> Tensor:
        """Return the log of the moving average of each row's item, (N,); in training mode, update it first."""
        require_negatives(result)
        items, total = result.ids, len(self.log_average)
        message = "ids: required, got none. Pass ids= in the call, one per item; each item has a moving average."
        check(items is not None, message, "missing")
        assert items is not None
        check(not items.is_floating_point(), f"ids: must be integers, got {items.dtype}.", "type")
        check_values("ids", items, (items >= 0) & (items < total), f"integers from 0 to {total - 1}")
        indices, size = group_indices(items), len(items)
        rows = indices[result.block.pattern.row_items]
        values = result.plan.log_kernel_row_sums() - log_candidate_counts(result)
        # Rows without compared pairs form a group of their own, behind those of the items.
        nonempty, ones = values > -torch.inf, torch.ones_like(values)
        groups = torch.where(nonempty, rows, size)
        means, counts = log_mean_exp_by_group(groups, torch.where(nonempty, values, 0), ones, size + 1)
        means, counts = means[indices], counts[indices]
        averages = self._update(
            items, torch.where(counts > 0, means.detach(), math.nan), training=updates_averages(self)
        )
        # The value is that of the average; the gradient is that of the batch's mean over the average.
        ratio = torch.exp(torch.where(counts > 0, means - averages, 0))
        item_values = torch.where(counts > 0, averages + ratio - ratio.detach(), 0)
        return result.target.row_mass() * item_values[result.block.pattern.row_items]

    @torch.no_grad()
    def _update(self, items: Tensor, means: Tensor, *, training: bool) -> Tensor:
        """Return the moving averages of given items, (n,), updated with their means in training; NaN without one.

        An item that occurs several times has the same mean each time, so that the order of writes does not matter.
        """
        past = self.log_average[items].to(means)
        if training:
            updated = torch.where(means.isnan(), past, log_moving_average(past, means, self.momentum))
            past = torch.where(past.isnan(), means, updated)
            self.log_average[items] = past.to(self.log_average)
        return torch.where(past.isnan(), means, past)

    def __repr__(self) -> str:
        return f"MovingAverageLogSum({len(self.log_average)}, {self.momentum!r})"
