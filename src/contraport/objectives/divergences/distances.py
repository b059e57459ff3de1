"""Distances between plans: symmetric, bounded, and finite where one has mass and the other has none.

Off the target's support each is a constant times the plan's mass, so that all that is asked of the plan is its mass in
each row and its entries where the target has some.
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


class Distance(ReprMixin, Divergence):
    """A sum over all pairs of a distance of two numbers, which is a multiple of P_ij where t_ij is 0.

    Attributes:
        slope: the multiple.
    """

    slope: float

    @abstractmethod
    def between(self, wanted: Tensor, log_found: Tensor) -> Tensor:
        """Return the distance of t, positive, and P, given by its logarithm: tensors of one shape to such a tensor."""

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the distance of each row."""
        target, plan = outcome.target, outcome.plan

        def beyond(wanted: Tensor, log_found: Tensor) -> Tensor:
            return self.between(wanted, log_found) - self.slope * log_found.exp()

        return target.row_sum(plan, beyond) + self.slope * plan.log_row_mass().exp()


@dataclass(frozen=True, repr=False)
class TotalVariation(Distance):
    """Half the sum of |t - P|: the mass that would have to move, were all moves of one length.

    Source: the Wasserstein distance under the 0-1 metric; the distance d_M of generalised contrastive alignment, Chen
    et al. (2024), section 3.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.TotalVariation())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.4239
    """

    slope = 0.5

    def between(self, wanted: Tensor, log_found: Tensor) -> Tensor:
        """Return |t - P| / 2."""
        return (wanted - log_found.exp()).abs() / 2


@dataclass(frozen=True, repr=False)
class Hellinger(Distance):
    """Half the sum of (sqrt t - sqrt P)^2, the squared Hellinger distance.

    Source: Liese and Vajda (2006), On divergences and informations in statistics and information theory, section II.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.Hellinger())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.241
    """

    slope = 0.5

    def between(self, wanted: Tensor, log_found: Tensor) -> Tensor:
        """Return (sqrt t - sqrt P)^2 / 2."""
        return (wanted.sqrt() - torch.exp(log_found / 2)).square() / 2


@dataclass(frozen=True, repr=False)
class JensenShannon(Distance):
    """The mean of the KL of t and of P from the plan half way between them; at most log 2 where both have mass 1.

    Source: Lin (1991), Divergence measures based on the Shannon entropy, eq. 4.1.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.JensenShannon())
    >>> round(loss(torch.eye(3), torch.eye(3)).item(), 4)
    0.1758
    """

    slope = math.log(2) / 2

    def between(self, wanted: Tensor, log_found: Tensor) -> Tensor:
        """Return (t log(2t / (t + P)) + P log(2P / (t + P))) / 2."""
        log_mean = torch.logaddexp(wanted.log(), log_found) - math.log(2)
        some = log_found > -torch.inf
        own = torch.where(some, log_found, log_mean)
        return (wanted * (wanted.log() - log_mean) + own.exp() * (own - log_mean)) / 2
