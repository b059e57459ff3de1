"""Logarithms of moving averages, which estimate sums over the whole data set."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from contraport.engine import check_not_in_torch_func
from contraport.errors import UsageError, check, check_integer, is_number
from contraport.objectives.equal_label_pairs import num_smaller_labels, weighted_log_mean_exp_by_group
from contraport.objectives.inputs import check_values


class ItemLogAverages(nn.Module):
    """Module that stores the log of a moving average for each item.

    Args:
        num_items: total number of items.
        momentum: weight of the past, in [0, 1).
        averages_per_item: shape (averages_per_item, num_items) of the buffer; None: (num_items,).

    Raises:
        UsageError: items is not positive, or the momentum is out of range.
    """

    log_average: Tensor

    def __init__(self, num_items: int, momentum: float, averages_per_item: int | None = None) -> None:
        super().__init__()
        check_integer("items", num_items)
        check(is_number(momentum) and 0 <= momentum < 1, f"momentum: must be a number in [0, 1), got {momentum!r}.")
        self.momentum = momentum
        shape = (num_items,) if averages_per_item is None else (averages_per_item, num_items)
        self.register_buffer("log_average", torch.full(shape, math.nan))

    def get_valid_ids(self, ids: Tensor | None) -> Tensor:
        """Return the ids, (n,), or raise `UsageError` if missing or out of range."""
        total = self.log_average.shape[-1]
        if ids is None:
            message = "ids: required, not given. Pass ids= in the call, one per item; each item has a moving average."
            raise UsageError(message, kind="missing")
        check_values("ids", ids, (ids >= 0) & (ids < total), f"integers from 0 to {total - 1}")
        return ids

    def update_log_averages_if_training(self, indices: Tensor, log_values: Tensor) -> Tensor:
        """Update the items' log averages in training mode only, and return them.

        The mean of the values at an index updates its average. The value is the average; the gradient is that of the
        mean divided by the average. Indices without a finite value give 0.

        Args:
            indices: index of each value in the flattened buffer, (k,); indices may repeat.
            log_values: logs of the values to average, (k,); minus infinity is left out.
        """
        groups, size, present = num_smaller_labels(indices), len(indices), log_values != -torch.inf
        # Values that are left out form one more group, after the groups of the indices.
        groups_or_last, ones = torch.where(present, groups, size), torch.ones_like(log_values)
        counts = log_values.new_zeros(size + 1).index_add(0, groups_or_last, ones)
        means = weighted_log_mean_exp_by_group(groups_or_last, torch.where(present, log_values, 0), ones, counts)
        means, counts = means[groups], counts[groups]
        new, stored, training = means.detach(), self.log_average.view(-1), should_update_averages(self)
        with torch.no_grad():
            new = torch.where(counts > 0, new, math.nan)
            averages = stored[indices].to(new)
            if training:
                updated = torch.where(new.isnan(), averages, log_moving_average(averages, new, self.momentum))
                averages = torch.where(averages.isnan(), new, updated)
                stored[indices] = averages.to(stored)  # in any order: all entries of an index have one mean
            averages = torch.where(averages.isnan(), new, averages)
        ratio = torch.exp(torch.where(counts > 0, means - averages, 0))
        return torch.where(counts > 0, averages + ratio - ratio.detach(), 0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.log_average.shape[-1]}, {self.momentum!r})"


def should_update_averages(module: nn.Module) -> bool:
    """Return whether a module is in training mode with gradients enabled."""
    updates = module.training and torch.is_grad_enabled()
    if updates:
        check_not_in_torch_func("averages: those over the calls do not move", "the objective in evaluation, .eval()")
    return updates


def log_moving_average(log_past: Tensor, log_present: Tensor, past_weight: float) -> Tensor:
    """Return log(w e^log_past + (1 - w) e^log_present), with w the `past_weight`."""
    # In logarithms: sums of a sharp kernel overflow single precision.
    weighted_past = log_past + math.log(past_weight) if past_weight else log_past - torch.inf
    return torch.logaddexp(weighted_past, log_present + math.log1p(-past_weight))
