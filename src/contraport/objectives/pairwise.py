"""The pairwise family, mean_i phi(sum_j psi(d_i^2 - d_ij^2)), whatever phi and psi.

As a kernel, psi is a link on T_ij = -d_ij^2 with the bias d_i^2 on its row, so that one log-sum-exp over the negatives
serves all of them, with its exact gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import Link, LogOf, log_sums, positive_part
from contraport.errors import check
from contraport.objectives.matching import Matching
from contraport.objectives.part import Part

Pointwise = Callable[[Tensor], Tensor]


@dataclass(frozen=True, repr=False)
class Pairwise(Part):
    """mean_i phi(log sum_j psi(scale (d_i^2 - d_ij^2) + shift)) over the negatives j of each row.

    Args:
        name: what to call it.
        phi: pointwise, of the logarithm of the sum.
        psi: the link log psi; None is psi = exp.
        scale: factor of the difference.
        shift: added to it.

    Raises:
        UsageError: in the call, where there are no negatives (one item).

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 1 and table 1.
    """

    name: str
    phi: Pointwise = field(repr=False)
    psi: Link | None = field(default=None, repr=False)
    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, matching: Matching) -> Tensor:
        """Return the loss."""
        return _mean(matching, self.phi(_log_sum(matching, self.psi, self.scale, self.shift)))


@dataclass(frozen=True, repr=False)
class SignedPairwise(Part):
    """mean_i phi(sum_j psi(d_i^2 - d_ij^2)) for a psi of any sign: its positive and its negative part, a pass each.

    Args:
        phi: pointwise, of the sum.
        psi: pointwise, of the difference; differentiable almost everywhere.

    Raises:
        UsageError: in the call, where there are no negatives (one item).
    """

    phi: Pointwise
    psi: Pointwise

    def __call__(self, matching: Matching) -> Tensor:
        """Return the loss."""
        above = _log_sum(matching, LogOf(lambda t: self.psi(t).clamp_min(0)), 1.0, 0.0).exp()
        below = _log_sum(matching, LogOf(lambda t: (-self.psi(t)).clamp_min(0)), 1.0, 0.0).exp()
        return _mean(matching, self.phi(above - below))


def _log_sum(matching: Matching, psi: Link | None, scale: float, shift: float) -> Tensor:
    check(matching.block.size > 1, "z0: pairwise objectives need negatives: at least 2 items, got 1.")
    geometry = matching.coupling.geometry
    a, b = matching.target.marginals()
    positive = -matching.target.row_inner(geometry.log_kernel) / torch.where(a > 0, a, 1)
    contrast = geometry.reshape(psi, scale=scale, row_bias=scale * positive + shift)
    return log_sums(contrast, "rows", torch.zeros_like(b))


def _mean(matching: Matching, by_row: Tensor) -> Tensor:
    a, _ = matching.target.marginals()
    return (a * torch.where(a > 0, by_row, 0)).sum()


Preset = Callable[[float, float, float], Pairwise | SignedPairwise]

PRESETS: dict[str, Preset] = {
    "info_nce": lambda t, e, c: Pairwise(
        "info_nce", lambda x: t * (x if e == 0 else torch.logaddexp(torch.full_like(x, math.log(e)), x)), scale=1 / t
    ),
    "mine": lambda t, e, c: Pairwise("mine", lambda x: x),
    "triplet": lambda t, e, c: Pairwise("triplet", torch.exp, positive_part(), shift=e),
    "soft_triplet": lambda t, e, c: Pairwise("soft_triplet", lambda x: t * F.softplus(x), scale=1 / t, shift=e),
    "n_plus_1_tuplet": lambda t, e, c: Pairwise("n_plus_1_tuplet", F.softplus),
    "lifted_structured": lambda t, e, c: Pairwise("lifted_structured", lambda x: F.relu(x).square(), shift=e),
    "sigmoid_pairs": lambda t, e, c: Pairwise("sigmoid_pairs", torch.exp, LogOf(lambda x: torch.sigmoid(c * x))),
    "linear_pairs": lambda t, e, c: SignedPairwise(lambda x: x, lambda x: x),
}
"""phi and psi of the losses of the paper's table, for a temperature t and constants e and c."""
