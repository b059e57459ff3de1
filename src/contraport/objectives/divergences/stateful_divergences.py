"""Divergences with parameters or buffers, for SigLIP, NCE and SogCLR.

They are part of the objective as a module: parameters and averages are in its ``state_dict`` and move with it.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from contraport.distributed import current_processes
from contraport.engine import LogSoftplus, create_shardable_scalar_parameter, gather_scalar_parameter, row_log_sums
from contraport.errors import check, check_finite, is_number
from contraport.objectives.divergences.divergence import (
    KernelDivergence,
    ValuesPerRow,
    check_has_negatives,
    log_candidate_counts_per_row,
    log_mean_kernel_of_block,
)
from contraport.objectives.log_moving_averages import ItemLogAverages, log_moving_average, should_update_averages
from contraport.objectives.plan import PlanWithTarget


class Logistic(nn.Module, KernelDivergence):
    """Logistic loss (SigLIP), the cross-entropy of classifying each pair as matched or not.

    The logit of a pair is log K_ij + bias. The label of a pair is its share of the row's target mass. It takes one pass
    over the pairs; its constraint is `Free`, as nothing is normalized.

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
        check_finite("bias", bias)
        self.bias = create_shardable_scalar_parameter(self, float(bias))

    def forward(self, result: PlanWithTarget) -> ValuesPerRow:
        """Return the cross-entropy of each row, (N,)."""
        return _logistic_loss_per_row(result, current_processes().with_averaged_gradient(self.bias))

    def __repr__(self) -> str:
        return f"Logistic({gather_scalar_parameter(self.bias):g})"


class NoiseContrastiveEstimation(nn.Module, KernelDivergence):
    """Noise-contrastive estimation (NCE), which classifies pairs as positive or noise.

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

    def forward(self, result: PlanWithTarget) -> ValuesPerRow:
        """Return the cross-entropy of each row, (N,)."""
        good = result.block.shape[1] > 1
        check(good, "z0: must have at least 2 items, or negatives=, as NCE needs noise, got 1.", "single_item")
        compared = result.block.pattern.compared_pairs().row_counts(result.plan.f.dtype)
        past = self.log_normalizer
        training = should_update_averages(self)
        with torch.no_grad():
            present = log_mean_kernel_of_block(result)
            updated = past if not training else log_moving_average(past.to(present), present, self.momentum)
            average = torch.where(past.isnan(), present, updated)
            if training:
                past.copy_(average)
        log_normalizer = average.detach()  # forward-mode differentiation ignores no_grad
        return _logistic_loss_per_row(result, -log_normalizer - (compared - 1).clamp_min(1).log())

    def __repr__(self) -> str:
        return f"NoiseContrastiveEstimation({self.momentum!r})"


class MovingAverageLogSum(ItemLogAverages, KernelDivergence):
    """Log-denominator of SogCLR, from a moving average of each item's mean kernel.

    The average of an item is that of the mean kernel over its compared pairs. A batch updates the averages u of its own
    items, u <- momentum u + (1 - momentum) mean; the first mean of an item is its first average. The gradient is that
    of the batch's mean divided by the average, so that small batches have the gradient of a large one. In evaluation
    mode the averages are constant. The call needs ``ids``, (n,), in [0, items).

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

    def __init__(self, items: int, momentum: float = 0.1) -> None:
        super().__init__(items, momentum)

    def forward(self, result: PlanWithTarget) -> ValuesPerRow:
        """Return each row's log-denominator from moving averages, times its target mass, (N,).

        In training mode the average is updated first.
        """
        check_has_negatives(result)
        row_ids = self.get_valid_ids(result.ids)[result.block.pattern.row_items]
        values = result.plan.kernel_log_row_sums() - log_candidate_counts_per_row(result)
        return result.target.row_mass() * self.update_log_averages_if_training(row_ids, values)


def _logistic_loss_per_row(result: PlanWithTarget, bias: Tensor) -> ValuesPerRow:
    """Return each row's logistic cross-entropy with logits log K + bias, (N,)."""
    geometry, target = result.plan.kernel_geometry, result.target
    good = geometry.log_kernel.link is None
    check(good, "kernel: must be a Gibbs kernel of power 1 for a logistic divergence.", "conflict")
    good = result.block.pattern.includes_positives
    check(good, "layout: must compare the positives for a logistic divergence.", "conflict")
    a = target.row_mass()
    row_bias = bias.to(a).expand_as(a)
    softplus_sums = row_log_sums(geometry.with_link(LogSoftplus(), row_shift=row_bias)).exp()
    return a * (softplus_sums - row_bias) - target.row_products_with_log_kernel(geometry.log_kernel)
