"""Negatives that may be of the anchor's own class, and the harder ones: their sum is corrected and reweighted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import Geometry, log_sums
from contraport.errors import check, check_nonnegative, is_number
from contraport.objectives.divergences.attraction_repulsion import log_counts
from contraport.objectives.divergences.divergence import Divergence, require_negatives
from contraport.objectives.plan import BlockResult
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class DebiasedContrastive(ReprMixin, Divergence):
    """-log of the positive's share K_i+ / (K_i+ + N g_i), g_i an estimate of the kernel's mean over true negatives.

    The mean over what the row is compared with, each weighed by K_ij^beta, less the share tau of it that is of the
    row's own class, for which the positive stands: g_i = max((mean - tau K_i+) / (1 - tau), e^(-1/temperature)), the
    last being the least value of the kernel. N is how many the row is compared with.

    Args:
        prior: tau, the share of the negatives that are of the row's own class, in [0, 1).
        beta: how much harder negatives count, nonnegative; 0 weighs all alike.

    Raises:
        UsageError: the prior or beta is outside its interval; in the call, a kernel other than `Gibbs` of power 1, or
            nothing to compare with (one item).

    Source: Chuang et al. (2020), Debiased contrastive learning, eq. 8; Robinson et al. (2021), Contrastive learning
    with hard negative samples, eq. 4.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Joint("both"), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.DebiasedContrastive())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.9048
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    prior: float = 0.1
    beta: float = 0.0

    def __post_init__(self) -> None:
        check(is_number(self.prior) and 0 <= self.prior < 1, f"prior: expected a number in [0, 1), got {self.prior!r}.")
        check_nonnegative("beta", self.beta)

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the value of each row."""
        geometry, target = outcome.plan.geometry, outcome.target
        check(geometry.log_kernel.link is None, "kernel: Debiased needs a Gibbs kernel of power 1.")
        require_negatives(outcome)
        a, log_number = target.row_mass(), log_counts(outcome)
        positive = target.row_inner_products(geometry.log_kernel) / torch.where(a > 0, a, 1)
        harder = _log_sum(geometry, 1 + self.beta)
        present = (a > 0) & (harder != -torch.inf)
        harder = torch.where(present, harder, 0)
        weights = torch.where(present, _log_sum(geometry, self.beta), 0) if self.beta else log_number
        mean = harder - weights
        # mean - tau K+ is positive where the excess is, and is then e^mean (1 - e^-excess).
        excess = mean - positive - math.log(self.prior) if self.prior else torch.full_like(mean, torch.inf)
        left = excess > 0
        corrected = mean + torch.log(-torch.expm1(-torch.where(left, excess, 1))) - math.log1p(-self.prior)
        least = torch.as_tensor(-1 / geometry.log_kernel.temperature, dtype=mean.dtype, device=mean.device)
        others = log_number + torch.where(left, torch.maximum(corrected, least), least)
        return a * torch.where(present, F.softplus(others - positive), 0)


def _log_sum(geometry: Geometry, power: float) -> Tensor:
    """Return the log of the sum of the kernel to a power over what each row is compared with, (N,)."""
    return log_sums(geometry.with_link(None, scale=power), "rows")
