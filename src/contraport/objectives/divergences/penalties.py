"""What judges a plan, or its kernel, by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from contraport.objectives.divergences.divergence import Divergence, require_negatives
from contraport.objectives.plan import BlockResult, kl
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class LogMeanKernel(ReprMixin, Divergence):
    """log of the mean of the kernel over the compared pairs: low where the embeddings spread out.

    Raises:
        UsageError: in the call, where there is no pair.

    Source: the uniformity of Wang and Isola (2020), eq. 2, with a kernel exp(-2 |x - y|^2).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.LogMeanKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -0.5472
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return log mean K."""
        require_negatives(outcome)
        return log_mean(outcome)


@dataclass(frozen=True, repr=False)
class PlanUniformity(ReprMixin, Divergence):
    """KL(Q | P), Q the plan with its mass on negatives spread evenly over them: it asks for no more than even
    negatives.

    With the cosine cost it takes no pass over the pairs.

    Source: the uniformity penalty of inverse optimal transport for contrastive learning, eq. 19-20.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.PlanUniformity())
    >>> round(loss(torch.eye(3), torch.eye(3).flip(1)).item(), 4)
    0.0797
    """

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the penalty."""
        plan, negatives = outcome.plan, outcome.block.pattern.negatives()
        on_positives = plan.log_at(*outcome.block.pattern.positives).exp().sum()
        by_row, by_column = negatives.counts(plan.f), negatives.T.counts(plan.g)
        count = by_row.sum()
        # A difference of nearly equal masses, where positives have almost all: below 0 it is rounding alone.
        mean = (plan.mass() - on_positives).clamp_min(0) / count.clamp_min(1)
        log_total = plan.geometry.log_kernel.row_inner_products(negatives).sum()
        log_total = log_total + by_row @ plan.f + by_column @ plan.g
        # With no negatives, or none that has mass, there is nothing to spread: 0, without gradient.
        return mean * (count * torch.where(mean > 0, mean, 1).log() - log_total)


@dataclass(frozen=True, repr=False)
class MarginalPenalty(ReprMixin, Divergence):
    """KL of the masses of rows and columns from the marginals: what a plan pays for mass that it creates or lets go.

    Source: the terms lambda_1 h_F and lambda_2 h_G of generalised contrastive alignment, Chen et al. (2024), eq. 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.MarginalPenalty())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4428
    """

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return KL(P 1 | a) + KL(P^T 1 | b)."""
        plan = outcome.plan
        rows = kl(plan.log_row_mass(), plan.log_row_marginal)
        return rows + kl(plan.log_column_mass(), plan.log_column_marginal)


def log_mean(outcome: BlockResult) -> Tensor:
    """Return log of the mean of the kernel over the compared pairs; 0, without gradient, where there are none.

    It takes one pass unless the plan has left it known.
    """
    plan = outcome.plan
    by_row = plan.log_row_sums()
    count = outcome.block.pattern.compared().counts(plan.f).sum()
    compared = count > 0
    return torch.where(compared, by_row, 0).logsumexp(0) - torch.where(compared, count, len(by_row)).log()
