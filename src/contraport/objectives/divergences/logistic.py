"""Logistic divergences: each pair is judged by itself, as matched or not, and no pair competes with another.

Their parameters and running averages belong to the objective as a module: they are in its ``state_dict`` and move with
it.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from contraport.distributed import world
from contraport.engine import LogSoftplus, log_sums, parameter_value, scalar_parameter
from contraport.errors import check, is_number
from contraport.objectives.divergences.divergence import Divergence, updates_averages
from contraport.objectives.divergences.penalties import log_mean
from contraport.objectives.plan import BlockResult


class Logistic(nn.Module, Divergence):
    """The cross-entropy of a logistic regression of "matched" on log K_ij + bias, summed over each row, then averaged.

    A pair's label is the share of its row that is wanted there. It takes one pass over the pairs, and goes with the
    plan `Free`: nothing is normalised.

    Args:
        bias: where its learning starts.

    Raises:
        UsageError: in the call, for a kernel other than `Gibbs` of power 1, or a layout that does not compare the
            positives.

    Source: Zhai et al. (2023), Sigmoid loss for language image pre-training, section 3.2.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.Logistic(bias=-1.0))
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    1.5671
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        check(is_number(bias) and math.isfinite(bias), f"bias: expected a finite number, got {bias!r}.")
        self.bias = scalar_parameter(self, float(bias))

    def forward(self, outcome: BlockResult) -> Tensor:
        """Return the cross-entropy of each row."""
        return _cross_entropy(outcome, world().as_replicated(self.bias))

    def __repr__(self) -> str:
        return f"Logistic({parameter_value(self.bias):g})"


class NoiseContrastiveEstimation(nn.Module, Divergence):
    """The cross-entropy of telling each row's positive from the K others that it is compared with, taken as noise.

    A pair's odds of being matched are K_ij / (K Z), Z the mean of the kernel over the compared pairs. A single batch
    tells Z badly: it is a moving average over the calls in training, which the first one begins and which takes no
    gradient; where a call has several directions, each moves it in turn; a training that calls it on one pair of views
    after another keeps one for each. In evaluation it stays as it is; before any training it is the batch's own.

    Args:
        momentum: the weight of the past in the average, in [0, 1).

    Raises:
        UsageError: the momentum is outside its interval; in the call, there is no noise (one column), or as `Logistic`.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.2; Gutmann and Hyvärinen (2010).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.NoiseContrastiveEstimation())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    1.3209
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    log_normalizer: Tensor

    def __init__(self, momentum: float = 0.9) -> None:
        super().__init__()
        check(is_number(momentum) and 0 <= momentum < 1, f"momentum: expected a number in [0, 1), got {momentum!r}.")
        self.momentum = momentum
        self.register_buffer("log_normalizer", torch.tensor(math.nan))

    def forward(self, outcome: BlockResult) -> Tensor:
        """Return the cross-entropy of each row; in training with gradients it moves the average first."""
        some = outcome.block.shape[1] > 1
        check(some, "z0: noise contrastive estimation needs noise: negatives=, or at least 2 items, got 1.")
        compared = outcome.block.pattern.compared().counts(outcome.plan.f)
        return _cross_entropy(outcome, -self._average(outcome) - (compared - 1).clamp_min(1).log())

    def _average(self, outcome: BlockResult) -> Tensor:
        """Return log Z."""
        past = self.log_normalizer
        training = updates_averages(self)
        with torch.no_grad():
            present = log_mean(outcome)
            moved = past if not training else log_mix(past.to(present), present, self.momentum)
            average = torch.where(past.isnan(), present, moved)
            if training:
                past.copy_(average)
        return average.detach()  # forward mode takes no notice of no_grad

    def __repr__(self) -> str:
        return f"NoiseContrastiveEstimation({self.momentum!r})"


def log_mix(past: Tensor, present: Tensor, momentum: float) -> Tensor:
    """Return log(momentum e^past + (1 - momentum) e^present)."""
    return torch.logaddexp(past + math.log(momentum) if momentum else past - torch.inf, present + math.log1p(-momentum))


def _cross_entropy(outcome: BlockResult, bias: Tensor) -> Tensor:
    """Return a_i sum_j log(1 + e^s_ij) - sum_j t_ij s_ij of each row, s = log K + bias, t the target with row masses
    a.
    """
    geometry, target = outcome.plan.geometry, outcome.target
    check(geometry.log_kernel.link is None, "kernel: logistic divergences need a Gibbs kernel of power 1.")
    check(outcome.block.pattern.compares_positives, "layout: logistic divergences need the positives to be compared.")
    a = target.row_mass()
    by_row = bias.to(a).expand_as(a)
    every = log_sums(geometry.with_link(LogSoftplus(), row_bias=by_row), "rows").exp()
    return a * (every - by_row) - target.row_inner_products(geometry.log_kernel)
