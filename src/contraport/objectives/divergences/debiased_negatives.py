"""Debiased contrastive loss: corrects the mean over negatives for false negatives, and weights hard ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import Geometry, log_sums
from contraport.errors import check, check_nonnegative, is_number
from contraport.objectives.divergences.attraction_repulsion import log_candidate_counts
from contraport.objectives.divergences.divergence import KernelDivergence, replace_zeros_by_one, require_negatives
from contraport.objectives.plan import BlockResult
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class DebiasedContrastive(ReprMixin, KernelDivergence):
    """Debiased contrastive loss with hard-negative weights, -log(K_i+ / (K_i+ + N g_i)).

    g_i estimates the mean of the kernel over true negatives.

    g_i = max((mean - tau K_i+) / (1 - tau), e^(-1/temperature)): the mean over the N compared pairs of the row, each
    weighted by K_ij^beta, less the share tau of the row's own class, for which the positive stands; e^(-1/temperature)
    is the minimum of the kernel.

    Args:
        prior: tau, share of negatives of the row's own class, in [0, 1).
        beta: exponent of the weights of harder negatives, nonnegative; 0 weights all equally.

    Raises:
        UsageError: the prior or beta is out of range; in the call, a kernel other than `Gibbs` of power 1, or a single
            item.

    Source: Chuang et al. (2020), Debiased contrastive learning, eq. 8; Robinson et al. (2021), Contrastive learning
    with hard negative samples, eq. 4.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Joint("both"), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.DebiasedContrastive())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.9048
    """

    prior: float = 0.1
    beta: float = 0.0

    def __post_init__(self) -> None:
        check(is_number(self.prior) and 0 <= self.prior < 1, f"prior: must be a number in [0, 1), got {self.prior!r}.")
        check_nonnegative("beta", self.beta)

    def __call__(self, result: BlockResult) -> Tensor:
        geometry, target = result.plan.geometry, result.target
        good = geometry.log_kernel.link is None
        check(good, "kernel: must be a Gibbs kernel of power 1 for DebiasedContrastive.", "conflict")
        require_negatives(result)
        a, log_number = target.row_mass(), log_candidate_counts(result)
        positive = target.row_inner_products(geometry.log_kernel) / replace_zeros_by_one(a)
        weighted = _log_power_sums(geometry, 1 + self.beta)
        present = (a > 0) & (weighted != -torch.inf)
        weighted = torch.where(present, weighted, 0)
        total = torch.where(present, _log_power_sums(geometry, self.beta), 0) if self.beta else log_number
        mean = weighted - total
        # In logarithms: mean - tau K+ is positive where the excess is, and is then e^mean (1 - e^-excess).
        excess = mean - positive - math.log(self.prior) if self.prior else torch.full_like(mean, torch.inf)
        left = excess > 0
        corrected = mean + torch.log(-torch.expm1(-torch.where(left, excess, 1))) - math.log1p(-self.prior)
        minimum = torch.as_tensor(-1 / geometry.log_kernel.temperature, dtype=mean.dtype, device=mean.device)
        others = log_number + torch.where(left, torch.maximum(corrected, minimum), minimum)
        return a * torch.where(present, F.softplus(others - positive), 0)


def _log_power_sums(geometry: Geometry, power: float) -> Tensor:
    """Return the log of the sum of K_ij^power over the compared pairs of each row, (N,)."""
    return log_sums(geometry.with_link(None, scale=power), "rows")
