"""The pairwise family, mean_i phi(sum_j psi(d_i^2 - d_ij^2)), whatever phi and psi.

As a kernel, psi is a link on T_ij = -d_ij^2 / temperature with the bias d_i^2 / temperature on its row, so that one
log-sum-exp over the negatives serves all of them, with its exact gradient. What has no temperature has 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import Link, LogFunction, LogPower, log_sums
from contraport.objectives.divergences.divergence import Divergence, require_negatives
from contraport.objectives.plan import BlockResult
from contraport.objectives.repr_mixin import ReprMixin

Pointwise = Callable[[Tensor], Tensor]

Phi = Callable[[Tensor, "float | Tensor"], Tensor]
"""phi as a pointwise function of the logarithm of the sum, and the kernel's temperature."""


@dataclass(frozen=True, repr=False)
class Pairwise(ReprMixin, Divergence):
    """mean_i phi(log sum_j psi((d_i^2 - d_ij^2) / temperature + shift)) over the negatives j of each row.

    Args:
        name: what to call it.
        phi: of the logarithm of the sum and the kernel's temperature.
        psi: the link log psi; None is psi = exp.
        shift: added to the difference.

    Raises:
        UsageError: in the call, where there are no negatives (one item).

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 1 and table 1.
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    name: str
    phi: Phi = field(repr=False)
    psi: Link | None = field(default=None, repr=False)
    shift: float = 0.0

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the loss of each row."""
        temperature = outcome.plan.geometry.log_kernel.temperature
        return _rows(outcome, self.phi(_log_sum(outcome, self.psi, self.shift), temperature))


@dataclass(frozen=True, repr=False)
class SignedPairwise(ReprMixin, Divergence):
    """mean_i phi(sum_j psi(d_i^2 - d_ij^2)) for a psi of any sign: its positive and its negative part, a pass each.

    Args:
        phi: pointwise, of the sum.
        psi: pointwise, of the difference; differentiable almost everywhere.

    Raises:
        UsageError: in the call, where there are no negatives (one item).
    """

    depends_on_constraint: ClassVar[bool] = False
    supports_column_weights: ClassVar[bool] = False

    phi: Pointwise
    psi: Pointwise

    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the loss of each row."""
        above = _log_sum(outcome, LogFunction(_Part(self.psi, 1)), 0.0).exp()
        below = _log_sum(outcome, LogFunction(_Part(self.psi, -1)), 0.0).exp()
        return _rows(outcome, self.phi(above - below))


@dataclass(frozen=True)
class _Part:
    """The positive part of a function, or for the sign -1 of its negative."""

    psi: Pointwise
    sign: int

    def __call__(self, t: Tensor) -> Tensor:
        return (self.sign * self.psi(t)).clamp_min(0)


def _log_sum(outcome: BlockResult, psi: Link | None, shift: float) -> Tensor:
    require_negatives(outcome)
    geometry = outcome.plan.geometry
    a = outcome.target.row_mass()
    positive = -outcome.target.row_inner_products(geometry.log_kernel) / torch.where(a > 0, a, 1)
    return log_sums(geometry.with_link(psi, row_bias=positive + shift), "rows")


def _rows(outcome: BlockResult, by_row: Tensor) -> Tensor:
    a = outcome.target.row_mass()
    return a * torch.where(a > 0, by_row, 0)


# What an objective keeps are functions with a name, not lambdas, so that it can be pickled.


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


class Preset(NamedTuple):
    """A loss of the paper's table.

    Attributes:
        tempered: whether it has a temperature.
        make: the divergence for the constants e and c.
    """

    accepts_temperature: bool
    make: Callable[[float, float], Pairwise | SignedPairwise]


PRESETS: dict[str, Preset] = {
    "info_nce": Preset(True, lambda e, c: Pairwise("info_nce", partial(_log_plus, epsilon=e))),
    "mine": Preset(False, lambda e, c: Pairwise("mine", _logarithm)),
    "triplet": Preset(False, lambda e, c: Pairwise("triplet", _sum, LogPower(), e)),
    "soft_triplet": Preset(True, lambda e, c: Pairwise("soft_triplet", _tempered_softplus, shift=e)),
    "n_plus_1_tuplet": Preset(False, lambda e, c: Pairwise("n_plus_1_tuplet", _softplus)),
    "lifted_structured": Preset(False, lambda e, c: Pairwise("lifted_structured", _positive_square, shift=e)),
    "sigmoid_pairs": Preset(
        False, lambda e, c: Pairwise("sigmoid_pairs", _sum, LogFunction(partial(_sigmoid, slope=c)))
    ),
    "linear_pairs": Preset(False, lambda e, c: SignedPairwise(torch.clone, torch.clone)),
}
"""phi and psi of the losses of the paper's table."""
