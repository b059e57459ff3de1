"""Divergences with learned parameters or moving averages: logistic losses and SogCLR's log-denominator.

They are part of the objective as a module: parameters and averages are in its ``state_dict`` and move with it.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from contraport.distributed import current_processes
from contraport.engine import LogSoftplus, log_sums, parameter_value, scalar_parameter
from contraport.errors import check, check_integer, is_number
from contraport.objectives.divergences.divergence import (
    KernelDivergence,
    log_candidate_counts,
    log_mean_exp_by_group,
    log_mean_kernel,
    require_negatives,
    updates_averages,
)
from contraport.objectives.inputs import check_values
from contraport.objectives.pair_sets import group_indices
from contraport.objectives.plan import BlockResult


class Logistic(nn.Module, KernelDivergence):
    """Binary cross-entropy of each pair as matched, with logit log K_ij + bias, summed over a row (SigLIP).

    The label of a pair is its share of the row's target mass. It takes one pass over the pairs; its constraint is
    `Free`, as nothing is normalized.

    Args:
        bias: initial value of the learned bias.

    Raises:
        UsageError: in the call, for a kernel other than `Gibbs` of power 1, or a layout that excludes the positives.

    Source: Zhai et al. (2023), Sigmoid loss for language image pre-training, section 3.2.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.Logistic(bias=-1.0))
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    1.5671
    """

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        check(is_number(bias) and math.isfinite(bias), f"bias: must be a finite number, got {bias!r}.")
        self.bias = scalar_parameter(self, float(bias))

    def forward(self, result: BlockResult) -> Tensor:
        """Return the cross-entropy of each row, (N,)."""
        return _cross_entropy(result, current_processes().with_averaged_gradient(self.bias))

    def __repr__(self) -> str:
        return f"Logistic({parameter_value(self.bias):g})"


class NoiseContrastiveEstimation(nn.Module, KernelDivergence):
    """Noise-contrastive estimation (NCE): classifies each pair of a row as positive or as noise.

    The noise of a row is its K other compared pairs.

    The odds of a pair are K_ij / (K Z), Z the mean of the kernel over the compared pairs. As the estimate of a single
    batch is noisy, Z is a moving average over the calls in training mode, without gradient; its first value is that of
    the first batch. If a call has several directions, each updates it in turn; a training that calls the objective on
    one pair of views after another keeps one for each. In evaluation mode it is constant; before any training it is
    the batch's own mean.

    Args:
        momentum: weight of the past in the average, in [0, 1).

    Raises:
        UsageError: the momentum is out of range; in the call, a single column, or as `Logistic`.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.2; Gutmann and Hyvärinen (2010).

    >>> import torch, contraport as cp
    >>> nce = cp.NoiseContrastiveEstimation()
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), nce)
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    1.3209
    """

    log_normalizer: Tensor

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        check(is_number(momentum) and 0 <= momentum < 1, f"momentum: must be a number in [0, 1), got {momentum!r}.")
        self.momentum = momentum
        self.register_buffer("log_normalizer", torch.tensor(math.nan))

    def forward(self, result: BlockResult) -> Tensor:
        """Return the cross-entropy of each row, (N,); in training mode, update the moving average first."""
        good = result.block.shape[1] > 1
        check(good, "z0: must have at least 2 items, or negatives=, as NCE needs noise, got 1.", "single_item")
        compared = result.block.pattern.compared_pairs().row_counts(result.plan.f)
        return _cross_entropy(result, -self._average(result) - (compared - 1).clamp_min(1).log())

    def _average(self, result: BlockResult) -> Tensor:
        """Return the log-normalizer log Z: the moving average, updated in training mode."""
        past = self.log_normalizer
        training = updates_averages(self)
        with torch.no_grad():
            present = log_mean_kernel(result)
            updated = past if not training else log_moving_average(past.to(present), present, self.momentum)
            average = torch.where(past.isnan(), present, updated)
            if training:
                past.copy_(average)
        return average.detach()  # forward-mode differentiation ignores no_grad

    def __repr__(self) -> str:
        return f"NoiseContrastiveEstimation({self.momentum!r})"


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


def log_moving_average(past: Tensor, present: Tensor, momentum: float) -> Tensor:
    """Return the log of an exponential moving average, log(momentum e^past + (1 - momentum) e^present)."""
    # In logarithms: sums of a sharp kernel overflow single precision.
    return torch.logaddexp(past + math.log(momentum) if momentum else past - torch.inf, present + math.log1p(-momentum))


def _cross_entropy(result: BlockResult, bias: Tensor) -> Tensor:
    """Return the binary cross-entropy of each row, (N,), with logits s = log K + bias.

    It is a_i sum_j log(1 + e^s_ij) - sum_j t_ij s_ij, a the row mass of the target plan t.
    """
    geometry, target = result.plan.geometry, result.target
    good = geometry.log_kernel.link is None
    check(good, "kernel: must be a Gibbs kernel of power 1 for a logistic divergence.", "conflict")
    good = result.block.pattern.includes_positives
    check(good, "layout: must compare the positives for a logistic divergence.", "conflict")
    a = target.row_mass()
    row_bias = bias.to(a).expand_as(a)
    softplus_sums = log_sums(geometry.with_link(LogSoftplus(), row_bias=row_bias), "rows").exp()
    return a * (softplus_sums - row_bias) - target.inner_products_with_log_kernel(geometry.log_kernel)
