"""A log-sum that is an average over the calls: what a batch is too small to tell, many batches do."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from contraport.errors import check, check_integer, is_number
from contraport.objectives.divergences.attraction_repulsion import log_counts, log_mean_by
from contraport.objectives.divergences.divergence import Divergence, require_negatives, updates_averages
from contraport.objectives.divergences.logistic import log_mix
from contraport.objectives.inputs import check_values
from contraport.objectives.pair_masks import group_indices
from contraport.objectives.plan import BlockResult


class MovingAverageLogSum(nn.Module, Divergence):
    """log u_i, u_i the moving average of the mean of the kernel over what the embeddings of item i are compared with.

    A batch moves the averages of its own items, u <- momentum u + (1 - momentum) mean, an item's first one begins them.
    The slope is that of the batch's mean divided by the average, so that small batches have the slope of a large one.
    In evaluation the averages stay as they are. The call needs ``ids``, (n,), in [0, items).

    Args:
        items: how many items there are in all.
        momentum: the weight of the past, in [0, 1).

    Raises:
        UsageError: items is not positive or the momentum outside its interval; in the call, ids are missing or outside
            theirs, or there is nothing to compare with (one item).

    Source: Yuan et al. (2022), Provable stochastic optimization for global contrastive learning, algorithm 1, whose
    gamma is 1 - momentum.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Joint("both"), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.MovingAverageLogSum(9))
    >>> round(loss(torch.eye(3), torch.eye(3), ids=torch.arange(3)).item(), 4)
    -1.0
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False
    requires_ids: ClassVar[bool] = True

    log_average: Tensor

    def __init__(self, items: int, momentum: float = 0.1) -> None:
        super().__init__()
        check_integer("items", items)
        check(is_number(momentum) and 0 <= momentum < 1, f"momentum: expected a number in [0, 1), got {momentum!r}.")
        self.momentum = momentum
        self.register_buffer("log_average", torch.full((items,), math.nan))

    def forward(self, outcome: BlockResult) -> Tensor:
        """Return the logarithm of each row's average; in training with gradients it moves them first."""
        require_negatives(outcome)
        check(
            outcome.ids is not None,
            "ids: the averages are those of items; expected the keyword ids, one per item, in the call.",
        )
        assert outcome.ids is not None
        known, items = len(self.log_average), outcome.ids
        check(not items.is_floating_point(), f"ids: expected whole numbers, got {items.dtype}.")
        check_values("ids", items, (items >= 0) & (items < known), f"whole numbers from 0 to {known - 1}")
        numbers, size = group_indices(items), len(items)
        rows = numbers[outcome.block.pattern.row_items]
        values = outcome.plan.log_row_sums() - log_counts(outcome)
        # Rows that are compared with nothing are of a group of their own, behind those of the items.
        there, ones = values > -torch.inf, torch.ones_like(values)
        groups = torch.where(there, rows, size)
        present, found = (v[numbers] for v in log_mean_by(groups, torch.where(there, values, 0), ones, size + 1))
        training = updates_averages(self)
        average = self._moved(items, torch.where(found > 0, present.detach(), math.nan), training=training)
        ratio = torch.exp(torch.where(found > 0, present - average, 0))
        each = torch.where(found > 0, average + ratio - ratio.detach(), 0)
        return outcome.target.row_mass() * each[outcome.block.pattern.row_items]

    @torch.no_grad()
    def _moved(self, items: Tensor, present: Tensor, *, training: bool) -> Tensor:
        """Return the averages of some items, (n,), moved by their present means where there are any.

        An item that occurs several times has the same mean each time, so that it does not matter which is written.
        """
        past = self.log_average[items].to(present)
        if training:
            moved = torch.where(present.isnan(), past, log_mix(past, present, self.momentum))
            past = torch.where(past.isnan(), present, moved)
            self.log_average[items] = past.to(self.log_average)
        return torch.where(past.isnan(), present, past)

    def __repr__(self) -> str:
        return f"MovingAverageLogSum({len(self.log_average)}, {self.momentum!r})"
