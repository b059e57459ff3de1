"""Penalties on a plan or its kernel, independent of the target plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.objectives.divergences.divergence import Divergence, KernelDivergence, require_negatives
from contraport.objectives.plan import BlockResult, generalized_kl
from contraport.objectives.repr_mixin import ReprMixin


@dataclass(frozen=True, repr=False)
class LogMeanKernel(ReprMixin, KernelDivergence):
    """Log of the mean kernel over the compared pairs: with a Gaussian kernel, the uniformity of Wang and Isola.

    Raises:
        UsageError: in the call, a single item.

    Source: Wang and Isola (2020), eq. 2, with the kernel exp(-2 |x - y|^2).

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.LogMeanKernel())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    -0.5472
    """

    def __call__(self, result: BlockResult) -> Tensor:
        require_negatives(result)
        return log_mean_kernel(result)


@dataclass(frozen=True, repr=False)
class PlanUniformity(ReprMixin, Divergence):
    """Uniformity penalty of IOT-CL on a plan, KL(Q | P): Q is P with the mass of all negatives spread evenly.

    With the cosine cost it takes no pass over the pairs.

    Source: the uniformity penalty of inverse optimal transport for contrastive learning, eq. 19-20.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.PlanUniformity())
    >>> round(loss(torch.eye(3), torch.eye(3).flip(1)).item(), 4)
    0.0797
    """

    def __call__(self, result: BlockResult) -> Tensor:
        plan, negatives = result.plan, result.block.pattern.negative_pairs()
        positive_mass = plan.log_at(*result.block.pattern.positives).exp().sum()
        row_counts, column_counts = negatives.row_counts(plan.f), negatives.T.row_counts(plan.g)
        count = row_counts.sum()
        # A difference of nearly equal masses if the positives have almost all: below 0 it is a rounding error.
        mean = (plan.mass() - positive_mass).clamp_min(0) / count.clamp_min(1)
        log_total = plan.geometry.log_kernel.row_inner_products(negatives).sum()
        log_total = log_total + row_counts @ plan.f + column_counts @ plan.g
        # Without negatives, or without mass on them, the penalty is 0 and has no gradient.
        return mean * (count * torch.where(mean > 0, mean, 1).log() - log_total)


@dataclass(frozen=True, repr=False)
class MarginalPenalty(ReprMixin, Divergence):
    """KL divergence of the plan's marginals from the target marginals, rows plus columns.

    Source: the terms lambda_1 h_F and lambda_2 h_G of generalized contrastive alignment, Chen et al. (2024), eq. 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.MarginalPenalty())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4428
    """

    def __call__(self, result: BlockResult) -> Tensor:
        plan = result.plan
        rows = generalized_kl(plan.log_row_mass(), plan.log_row_marginal)
        return rows + generalized_kl(plan.log_column_mass(), plan.log_column_marginal)


def log_mean_kernel(result: BlockResult) -> Tensor:
    """Return the log of the mean kernel over the compared pairs; 0, without gradient, if there are none.

    It takes one pass over the pairs unless the plan has the row sums cached.
    """
    plan = result.plan
    log_row_sums = plan.log_kernel_row_sums()
    count = result.block.pattern.compared_pairs().row_counts(plan.f).sum()
    nonempty = count > 0
    total = torch.where(nonempty, log_row_sums, 0).logsumexp(0)
    return total - torch.where(nonempty, count, len(log_row_sums)).log()
