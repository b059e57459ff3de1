"""Divergences on cost differences between each pair and the positive one.

They are pairwise losses, debiased InfoNCE and a closed-form quadratic loss. In the first, mean_i phi(sum_j psi(d_i^2 -
d_ij^2)), psi is a link on T_ij = -d_ij^2 / temperature with the bias d_i^2 / temperature on its row: one log-sum-exp
over the negatives serves all of them, with its exact gradient. Without a temperature it is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from contraport.engine import Link, LogOfFunction, ScaledLog, row_log_sums
from contraport.errors import check, check_finite, check_name, check_nonnegative, check_positive, check_type, is_number
from contraport.objectives.divergences.divergence import (
    KernelDivergence,
    ValuesPerRow,
    check_has_negatives,
    log_candidate_counts_per_row,
    replace_zeros_by_one,
    scale_rows_by_target_mass,
)
from contraport.objectives.plan import Plan, PlanWithTarget
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

PointwiseFunction = Callable[[Tensor], Tensor]
"""Elementwise function of a tensor, such as `torch.exp`."""


@dataclass(frozen=True, repr=False)
class Pairwise(KernelDivergence):
    """Pairwise loss, such as the triplet loss, on differences of squared distances.

    It is phi(log sum_j psi((d_i^2 - d_ij^2) / temperature + shift)), with the distance d_i of item i to its partner,
    the distance d_ij to candidate j, and a positive function psi.

    Args:
        name: name of the loss.
        phi_of_log_sum: pointwise function phi of the log of the sum.
        log_psi: link of the kernel, the log of psi; None is psi = exp.
        shift: added to the difference.
        times_temperature: multiply the value by the kernel's temperature.

    Raises:
        UsageError: an argument has the wrong type; in the call, a single item.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 1 and table 1.
    """

    name: str
    phi_of_log_sum: PointwiseFunction = field(repr=False)
    log_psi: Link | None = field(default=None, repr=False)
    shift: float = 0.0
    times_temperature: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_type("phi_of_log_sum", self.phi_of_log_sum, Callable, "torch.exp")
        if self.log_psi is not None:
            check_type("log_psi", self.log_psi, Link, "ScaledLog()")
        check_finite("shift", self.shift)

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        check_has_negatives(result)
        values = self.phi_of_log_sum(_log_sums_of_psi(result, self.log_psi, self.shift))
        if self.times_temperature:
            values = result.plan.kernel_geometry.log_kernel.temperature * values
        return scale_rows_by_target_mass(result, values)


@dataclass(frozen=True, repr=False)
class PairwiseSum(KernelDivergence):
    """Pairwise loss phi(sum_j psi(d_i^2 - d_ij^2)) of distances to partners and candidates.

    The distances d_i of partners and d_ij of candidates are those of `Pairwise`.

    Args:
        phi_of_sum: pointwise function phi of the sum.
        psi_of_difference: pointwise function psi of the difference, differentiable almost everywhere.

    Raises:
        UsageError: an argument is not a function; in the call, a single item.
    """

    phi_of_sum: PointwiseFunction
    psi_of_difference: PointwiseFunction

    def __post_init__(self) -> None:
        for name in ("phi_of_sum", "psi_of_difference"):
            check_type(name, getattr(self, name), Callable, "torch.exp")

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        check_has_negatives(result)
        # Two passes, as each sums logarithms: the parts of either sign are summed separately.
        positive, negative = (
            _log_sums_of_psi(result, LogOfFunction(function), 0.0).exp()
            for function in (self.psi_of_difference, _NegatedFunction(self.psi_of_difference))
        )
        return scale_rows_by_target_mass(result, self.phi_of_sum(positive - negative))


@dataclass(frozen=True)
class _NegatedFunction:
    """Negative of a function, with value equality so that compiled code is reused."""

    function: PointwiseFunction

    def __call__(self, t: Tensor) -> Tensor:
        return -self.function(t)


def _log_sums_of_psi(result: PlanWithTarget, log_psi: Link | None, shift: float) -> ValuesPerRow:
    """Return log sum_j psi(margin_ij), (N,), for a pointwise function psi.

    The margin of a pair is (positive cost - pair cost) / temperature + shift.
    """
    geometry = result.plan.kernel_geometry
    positive = -result.target.row_products_with_log_kernel(geometry.log_kernel) / replace_zeros_by_one(
        result.target.row_mass()
    )
    return row_log_sums(geometry.with_link(log_psi, row_shift=positive + shift))


# Named functions rather than lambdas: an objective that holds one can be pickled.


def _log_sum_plus_epsilon(log_sum: Tensor, *, epsilon: float) -> Tensor:
    """Return log(epsilon + exp(log_sum)) without overflow."""
    return torch.logaddexp(torch.full_like(log_sum, math.log(epsilon)), log_sum) if epsilon else log_sum


def _squared_relu(t: Tensor) -> Tensor:
    """Return the squared ReLU, max(0, t)^2."""
    return F.relu(t).square()


def _sigmoid(t: Tensor, *, slope: float) -> Tensor:
    """Return the sigmoid of `slope` times `t`."""
    return torch.sigmoid(slope * t)


PAIRWISE_PRESETS: dict[str, Callable[[float, float], Pairwise | PairwiseSum]] = {
    "info_nce": lambda epsilon, c: Pairwise(
        "info_nce", partial(_log_sum_plus_epsilon, epsilon=epsilon), times_temperature=True
    ),
    "mine": lambda epsilon, c: Pairwise("mine", torch.positive),
    "triplet": lambda epsilon, c: Pairwise("triplet", torch.exp, ScaledLog(), epsilon),
    "soft_triplet": lambda epsilon, c: Pairwise("soft_triplet", F.softplus, shift=epsilon, times_temperature=True),
    "n_plus_1_tuplet": lambda epsilon, c: Pairwise("n_plus_1_tuplet", F.softplus),
    "lifted_structured": lambda epsilon, c: Pairwise("lifted_structured", _squared_relu, shift=epsilon),
    "sigmoid_pairs": lambda epsilon, c: Pairwise("sigmoid_pairs", torch.exp, LogOfFunction(partial(_sigmoid, slope=c))),
    "linear_pairs": lambda epsilon, c: PairwiseSum(torch.clone, torch.clone),
}
"""Builders of pairwise losses from epsilon and c, by preset: table 1 of the alpha-CL paper (Tian, 2022)."""


@dataclass(frozen=True, repr=False)
class DebiasedContrastive(KernelDivergence):
    """Debiased InfoNCE, which corrects for negatives of the row's own class.

    The loss of a row with the positive K_i+ is -log(K_i+ / (K_i+ + N g_i)), where g_i estimates the mean of the kernel
    over true negatives.

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

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        geometry, target = result.plan.kernel_geometry, result.target
        good = geometry.log_kernel.link is None
        check(good, "kernel: must be a Gibbs kernel of power 1 for DebiasedContrastive.", "conflict")
        check_has_negatives(result)
        a, log_number = target.row_mass(), log_candidate_counts_per_row(result)
        positive = target.row_products_with_log_kernel(geometry.log_kernel) / replace_zeros_by_one(a)
        # A factor on log K is a power of K: log sums of K_ij^(1 + beta), and of the weights K_ij^beta.
        weighted = row_log_sums(geometry.with_link(None, factor=1 + self.beta))
        present = (a > 0) & (weighted != -torch.inf)
        weighted = torch.where(present, weighted, 0)
        total = log_number
        if self.beta:
            total = torch.where(present, row_log_sums(geometry.with_link(None, factor=self.beta)), 0)
        mean = weighted - total
        # In logarithms: mean - tau K+ is positive where the excess is, and is then e^mean (1 - e^-excess).
        excess = mean - positive - math.log(self.prior) if self.prior else torch.full_like(mean, torch.inf)
        left = ~(excess <= 0)  # also where it is NaN, which the value must show
        corrected = mean + torch.log(-torch.expm1(-torch.where(left, excess, 1))) - math.log1p(-self.prior)
        minimum = torch.as_tensor(-1 / geometry.log_kernel.temperature, dtype=mean.dtype, device=mean.device)
        others = log_number + torch.where(left, torch.maximum(corrected, minimum), minimum)
        return a * torch.where(present, F.softplus(others - positive), 0)


@accept_deprecated_keywords(over="mass_constraint", floor="tangent_below")
@keep_deprecated_attributes(over="mass_constraint", floor="tangent_below")
@dataclass(frozen=True, repr=False)
class ClosedFormQuadratic(KernelDivergence):
    """Inverse-optimal-transport contrastive loss (IOT-CL) with a quadratic regularizer.

    Its implied plan has a closed form and may have negative entries. It takes no pass over all pairs.

    rows: -mean_i log((1 + sum_j (C_ij - C_i+)) / n); simplex: -mean_i log((N + sum_st (C_st - C_i+)) / n^2), with sums
    over the compared pairs, n of them in a row and n^2 in all. Near 0 the logarithm continues as its
    tangent, so that value and gradient stay finite and still attract the pair.

    Args:
        mass_constraint: ``"rows"`` or ``"simplex"``.
        tangent_below: argument below which the logarithm continues as its tangent, positive.

    Raises:
        UsageError: mass_constraint is unknown, or tangent_below is not positive.

    Source: the losses L_G of inverse optimal transport for contrastive learning.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.ClosedFormQuadratic())
    >>> round(loss(torch.eye(3), torch.eye(3).roll(1, 0)).item(), 4)
    7.9078
    """

    mass_constraint: str = "rows"
    tangent_below: float = 1e-3

    def __post_init__(self) -> None:
        check_name("mass_constraint", self.mass_constraint, ("rows", "simplex"))
        check_positive("tangent_below", self.tangent_below)

    def __call__(self, result: PlanWithTarget) -> ValuesPerRow:
        plan, compared = result.plan, result.block.pattern.compared_pairs()
        totals = -plan.kernel_geometry.log_kernel.row_sums_of_weighted_log_kernel(compared)
        counts = compared.row_counts(plan.f.dtype)
        mass = 1.0
        if self.mass_constraint == "simplex":
            totals, counts, mass = totals.sum(), counts.sum(), float(len(plan.f))
        level = ((mass + totals) / counts.clamp_min(1)).expand_as(plan.f)
        # T is minus the cost in units of the temperature: the argument at (i, j) is the level of its row plus T_ij.
        arguments = Plan(plan.kernel_geometry, level, None)

        def log_with_tangent(argument: Tensor) -> Tensor:
            safe = argument.clamp_min(self.tangent_below)  # the tangent continues there: the gradient still attracts
            return safe.log() + (argument - safe) / self.tangent_below

        return -result.target.target_weighted_row_sums(arguments, log_with_tangent)
