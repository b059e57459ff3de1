"""Pairwise family of contrastive losses (triplet and others): mean_i phi(sum_j psi(d_i^2 - d_ij^2)).

psi is a link on T_ij = -d_ij^2 / temperature with the bias d_i^2 / temperature on its row, so that one log-sum-exp over
the negatives serves all of them, with its exact gradient. Losses without a temperature have temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import Link, LogFunction, LogPower, log_sums
from contraport.objectives.divergences.divergence import KernelDivergence, replace_zeros_by_one, require_negatives
from contraport.objectives.plan import BlockResult
from contraport.objectives.repr_mixin import ReprMixin

Pointwise = Callable[[Tensor], Tensor]

Phi = Callable[[Tensor, "float | Tensor"], Tensor]
"""phi as a pointwise function of the log of the sum, and the kernel's temperature."""


@dataclass(frozen=True, repr=False)
class Pairwise(ReprMixin, KernelDivergence):
    """Pairwise loss, such as the triplet loss: phi(log sum_j psi((d_i^2 - d_ij^2) / temperature + shift)), psi > 0.

    Args:
        name: name of the loss.
        phi: of the log of the sum and the kernel's temperature.
        psi: the link log psi; None is psi = exp.
        shift: added to the difference.

    Raises:
        UsageError: in the call, a single item.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 1 and table 1.
    """

    name: str
    phi: Phi = field(repr=False)
    psi: Link | None = field(default=None, repr=False)
    shift: float = 0.0

    def __call__(self, result: BlockResult) -> Tensor:
        temperature = result.plan.geometry.log_kernel.temperature
        return _loss_of_rows(result, self.phi(_log_sum_psi(result, self.psi, self.shift), temperature))


@dataclass(frozen=True, repr=False)
class SignedPairwise(ReprMixin, KernelDivergence):
    """Pairwise loss whose function psi may be negative (signed): phi(sum_j psi(d_i^2 - d_ij^2)), averaged over rows.

    Args:
        phi: pointwise function of the sum.
        psi: pointwise function of the difference, differentiable almost everywhere.

    Raises:
        UsageError: in the call, a single item.
    """

    phi: Pointwise
    psi: Pointwise

    def __call__(self, result: BlockResult) -> Tensor:
        # Two passes, as each sums logarithms: the parts of either sign are summed separately.
        positive, negative = (
            _log_sum_psi(result, LogFunction(_SignedPart(self.psi, sign)), 0.0).exp() for sign in (1, -1)
        )
        return _loss_of_rows(result, self.phi(positive - negative))


@dataclass(frozen=True)
class _SignedPart:
    """Positive part of a function (sign 1), or of its negative (sign -1)."""

    psi: Pointwise
    sign: int

    def __call__(self, t: Tensor) -> Tensor:
        return (self.sign * self.psi(t)).clamp_min(0)


def _log_sum_psi(result: BlockResult, psi: Link | None, shift: float) -> Tensor:
    require_negatives(result)
    geometry = result.plan.geometry
    positive = -result.target.row_inner_products(geometry.log_kernel) / replace_zeros_by_one(result.target.row_mass())
    return log_sums(geometry.with_link(psi, row_bias=positive + shift), "rows")


def _loss_of_rows(result: BlockResult, values: Tensor) -> Tensor:
    a = result.target.row_mass()
    return a * torch.where(a > 0, values, 0)


# Named functions rather than lambdas: an objective that holds one can be pickled.


def _log_plus(log_sum: Tensor, temperature: float | Tensor, *, epsilon: float) -> Tensor:
    if epsilon == 0:
        return temperature * log_sum
    return temperature * torch.logaddexp(torch.full_like(log_sum, math.log(epsilon)), log_sum)


def _logarithm(log_sum: Tensor, temperature: float | Tensor) -> Tensor:
    return log_sum


def _sum(log_sum: Tensor, temperature: float | Tensor) -> Tensor:
    return log_sum.exp()


def _tempered_softplus(log_sum: Tensor, temperature: float | Tensor) -> Tensor:
    return temperature * F.softplus(log_sum)


def _softplus(log_sum: Tensor, temperature: float | Tensor) -> Tensor:
    return F.softplus(log_sum)


def _positive_square(log_sum: Tensor, temperature: float | Tensor) -> Tensor:
    return F.relu(log_sum).square()


def _sigmoid(t: Tensor, *, slope: float) -> Tensor:
    return torch.sigmoid(slope * t)


class PairwisePreset(NamedTuple):
    """Preset of a pairwise loss from the table of the alpha-CL paper.

    Attributes:
        accepts_temperature: Whether the loss has a temperature.
        build_divergence: Builds the divergence from the constants epsilon and c.
    """

    accepts_temperature: bool
    build_divergence: Callable[[float, float], Pairwise | SignedPairwise]


PAIRWISE_PRESETS: dict[str, PairwisePreset] = {
    "info_nce": PairwisePreset(True, lambda e, c: Pairwise("info_nce", partial(_log_plus, epsilon=e))),
    "mine": PairwisePreset(False, lambda e, c: Pairwise("mine", _logarithm)),
    "triplet": PairwisePreset(False, lambda e, c: Pairwise("triplet", _sum, LogPower(), e)),
    "soft_triplet": PairwisePreset(True, lambda e, c: Pairwise("soft_triplet", _tempered_softplus, shift=e)),
    "n_plus_1_tuplet": PairwisePreset(False, lambda e, c: Pairwise("n_plus_1_tuplet", _softplus)),
    "lifted_structured": PairwisePreset(False, lambda e, c: Pairwise("lifted_structured", _positive_square, shift=e)),
    "sigmoid_pairs": PairwisePreset(
        False, lambda e, c: Pairwise("sigmoid_pairs", _sum, LogFunction(partial(_sigmoid, slope=c)))
    ),
    "linear_pairs": PairwisePreset(False, lambda e, c: SignedPairwise(torch.clone, torch.clone)),
}
"""Pairwise losses of the paper's table, by name."""
