"""Bounded distances between plans: total variation, Hellinger and Jensen-Shannon.

They are finite where one plan has mass and the other has none.

Where the target has no mass each is a constant times the plan's mass: only the row masses of the plan and its entries
on the target's support are needed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.objectives.divergences.divergence import Divergence
from contraport.objectives.plan import BlockResult
from contraport.objectives.repr_mixin import ReprMixin


class PlanDistance(ReprMixin, Divergence):
    """Base class of distances between plans: the sum over all pairs of a distance of t_ij and P_ij.

    Where t_ij is 0, the distance must be a multiple of P_ij.

    Attributes:
        zero_target_slope: Distance of a pair per unit of P_ij where t_ij is 0.
    """

    zero_target_slope: float

    @abstractmethod
    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        """Return the elementwise distance of t > 0 from P, given as log P."""

    def __call__(self, result: BlockResult) -> Tensor:
        target, plan = result.target, result.plan

        # Beyond zero_target_slope * P the distance vanishes off the support of the target: only its entries are read.
        def excess(mass: Tensor, log_plan: Tensor) -> Tensor:
            return self.elementwise_distance(mass, log_plan) - self.zero_target_slope * log_plan.exp()

        return target.sum_over_support(plan, excess) + self.zero_target_slope * plan.log_row_mass().exp()


@dataclass(frozen=True, repr=False)
class TotalVariation(PlanDistance):
    """Total variation distance, half the sum of |t - P|.

    Source: the Wasserstein distance under the 0-1 metric; the distance d_M of generalized contrastive alignment, Chen
    et al. (2024), section 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.TotalVariation())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4239
    """

    zero_target_slope = 0.5

    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        return (target - log_plan.exp()).abs() / 2


@dataclass(frozen=True, repr=False)
class Hellinger(PlanDistance):
    """Squared Hellinger distance, half the sum of (sqrt t - sqrt P)^2.

    Source: Liese and Vajda (2006), On divergences and informations in statistics and information theory, section II.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.Hellinger())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.241
    """

    zero_target_slope = 0.5

    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        return (target.sqrt() - torch.exp(log_plan / 2)).square() / 2


@dataclass(frozen=True, repr=False)
class JensenShannon(PlanDistance):
    """Jensen-Shannon divergence: mean KL of t and of P from (t + P) / 2; at most log 2 for plans of mass 1.

    Source: Lin (1991), Divergence measures based on the Shannon entropy, eq. 4.1.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.JensenShannon())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.1758
    """

    zero_target_slope = math.log(2) / 2

    def elementwise_distance(self, target: Tensor, log_plan: Tensor) -> Tensor:
        log_mean = torch.logaddexp(target.log(), log_plan) - math.log(2)
        # Where P is 0 its term is 0: a finite logarithm in place of -inf avoids 0 times infinity.
        own = torch.where(log_plan > -torch.inf, log_plan, log_mean)
        return (target * (target.log() - log_mean) + own.exp() * (own - log_mean)) / 2
