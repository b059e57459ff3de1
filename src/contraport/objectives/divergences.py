"""Divergences: how far the plan that came out is from the plan that is wanted.

They are written with the few questions that a coupling and a target plan answer, and see no (N, M) matrix. Penalties,
which judge the plan by itself, have the same form.

What is a sum over rows is given row by row: the objective weighs the rows, leaves out those that want nothing, and adds
them up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from contraport.engine import by_stripes
from contraport.errors import UsageError, check, check_positive, unknown_name
from contraport.objectives.coupling import Coupling
from contraport.objectives.matching import Matching
from contraport.objectives.part import Part
from contraport.objectives.plans import QuadraticCoupling


class Divergence(Protocol):
    """A function of a matching; divergences compare the coupling with its target, penalties judge it by itself."""

    def __call__(self, matching: Matching) -> Tensor:
        """Return the value of each row, (N,), whose sum is meant; or a tensor without dimensions, which is no sum."""


@dataclass(frozen=True, repr=False)
class KL(Part):
    """The generalised Kullback-Leibler divergence, sum t log(t / P) - sum t + sum P: nonnegative, zero where P = t.

    Where the layout keeps the positives out of the denominators, they count with the mass that they would have had.
    """

    def __call__(self, matching: Matching) -> Tensor:
        """Return the rows of KL(target | coupling); each carries its share of what the masses differ by."""
        target, coupling = matching.target, matching.coupling
        of_mass = target.row_mass() * (coupling.mass() - 1)
        return of_mass - target.row_entropy() - coupling.row_inner_log(target)


@dataclass(frozen=True, repr=False)
class ReverseKL(Part):
    """KL(P | t): it punishes mass where the target has none, so that the target must have some on every compared pair.

    Raises:
        UsageError: in the call, for a target that is zero where the plan is not.
    """

    def __call__(self, matching: Matching) -> Tensor:
        """Return the rows of KL(coupling | target)."""
        coupling, target = matching.coupling, matching.target

        def divergence(rows: slice) -> Tensor:
            log_plan, wanted = coupling.restrict(rows).log_dense(), target.restrict(rows).dense()
            present = log_plan > -torch.inf
            check(
                bool((wanted[present] > 0).all()), "target: ReverseKL expects mass on every compared pair, got zeros."
            )
            log_plan = torch.where(present, log_plan, 0)
            log_ratio = log_plan - torch.where(present, wanted, 1).log()
            return torch.where(present, log_plan.exp() * (log_ratio - 1), 0).sum(1) + wanted.sum(1)

        return torch.cat(by_stripes(divergence, coupling.shape))


@dataclass(frozen=True, repr=False)
class SquaredL2(Part):
    """Half the squared distance of the plans, N/2 sum (P - t)^2, so that a row counts by its shares, not by its
    mass.
    """

    def __call__(self, matching: Matching) -> Tensor:
        """Return the rows of N/2 |coupling - target|^2."""
        target, coupling = matching.target, matching.coupling
        crossed = target.row_expectation(coupling, torch.exp)
        return coupling.shape[0] * (coupling.row_square_mass() / 2 - crossed + target.row_square_mass() / 2)


@dataclass(frozen=True, repr=False)
class Rince(Part):
    """The robust divergence of RINCE, mean_i 1/q [(lam sum_j N P_ij)^q - (N P_i+)^q]. It can be negative.

    q -> 0 gives the logarithm, InfoNCE; q = 1 is symmetric between positives and negatives, and tolerates noise.

    Args:
        q: in (0, 1].
        lam: weight of the negatives, in (0, 1].

    Raises:
        UsageError: q or lam is outside its interval.

    Source: Chuang et al. (2022), Robust contrastive learning against noisy views, eq. 4.
    """

    q: float = 0.5
    lam: float = 0.01

    def __post_init__(self) -> None:
        for name in ("q", "lam"):
            value = getattr(self, name)
            check(0 < value <= 1, f"{name}: expected a number in (0, 1], got {value!r}.")

    def __call__(self, matching: Matching) -> Tensor:
        """Return the divergence of each row."""
        target, coupling = matching.target, matching.coupling
        log_n = math.log(coupling.shape[0])
        attracted = target.row_expectation(coupling, lambda log_p: torch.exp(self.q * (log_p + log_n)))
        repelled = torch.exp(self.q * (math.log(self.lam) + coupling.log_row_mass() + log_n))
        return (target.row_mass() * repelled - attracted) / self.q


@dataclass(frozen=True, repr=False)
class FenchelYoung(Part):
    """The Fenchel-Young loss of a quadratic plan: its own divergence, as KL is that of entropic plans.

    Per unit of shared mass, with logits theta: Omega*(theta) - <theta, t> + Omega(t), Omega = |.|^2 / 2; zero where P =
        t.

    Raises:
        UsageError: in the call, for a plan other than `Quadratic`.

    Source: Blondel, Martins and Niculae (2020), Learning with Fenchel-Young losses, section 4.
    """

    def __call__(self, matching: Matching) -> Tensor:
        """Return the loss of each row."""
        target, coupling = matching.target, matching.coupling
        if not isinstance(coupling, QuadraticCoupling):
            raise UsageError("divergence: FenchelYoung belongs to the plan Quadratic; for entropic plans it is KL.")
        mass = target.row_mass()
        served = mass if coupling.per_row else mass.sum()
        own = target.row_square_mass() / torch.where(served > 0, served, 1) / 2
        return mass * coupling.conjugate() - coupling.row_inner_logits(target) + own


@dataclass(frozen=True, repr=False)
class ClosedFormQuadratic(Part):
    """-log of a quadratic plan's positives when negative entries are let pass: no pass over the pairs at all.

    rows: -mean_i log((1 + sum_j (C_ij - C_i+)) / n); simplex: -mean_i log((N + sum_st (C_st - C_i+)) / n^2), with sums
    over the compared pairs, n of them in a row and n^2 in all. Where the argument falls below a small floor the
    logarithm goes on as its tangent, so that value and gradient stay finite and still pull the pair together.

    Args:
        constraint: ``"rows"`` or ``"simplex"``.

    Raises:
        UsageError: another constraint.

    Source: the losses L_G of inverse optimal transport for contrastive learning.
    """

    constraint: str = "rows"
    floor: float = 1e-3

    def __post_init__(self) -> None:
        if self.constraint not in ("rows", "simplex"):
            raise unknown_name("constraint", self.constraint, ("rows", "simplex"))
        check_positive("floor", self.floor)

    def __call__(self, matching: Matching) -> Tensor:
        """Return the loss of each row."""
        coupling, compared = matching.coupling, matching.block.compared()
        totals, counts = -coupling.geometry.log_kernel.row_inner(compared), compared.counts(coupling.f)
        mass = 1.0
        if self.constraint == "simplex":
            totals, counts, mass = totals.sum(), counts.sum(), float(len(coupling.f))
        level = ((mass + totals) / counts.clamp_min(1)).expand_as(coupling.f)
        # As T is minus the cost in units of the temperature, the argument at (i, j) is the level of its row plus T.
        arguments = Coupling(coupling.geometry, level, torch.zeros_like(coupling.g))
        return -matching.target.row_expectation(arguments, self._log)

    def _log(self, argument: Tensor) -> Tensor:
        safe = argument.clamp_min(self.floor)
        return safe.log() + (argument - safe) / self.floor


@dataclass(frozen=True, repr=False)
class Cost(Part):
    """The transport cost of the target, <t, C>: how far apart the wanted pairs are; attraction without repulsion."""

    def __call__(self, matching: Matching) -> Tensor:
        """Return the cost of each row."""
        cost_kernel = matching.coupling.cost_kernel
        return -cost_kernel.unit * matching.target.row_inner(cost_kernel)


@dataclass(frozen=True, repr=False)
class Energy(Part):
    """The transport cost of the target less that of the plan, <t, C> - <P, C>: attraction against weighted repulsion.

    It is minus the energy of the min-max game: the plan has chosen the pair weights, the encoder now plays against
    them.

    Args:
        detach: hold the plan fixed. With `Rows` the gradient is then temperature times that of KL.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 3-5.
    """

    detach: bool = True

    def __call__(self, matching: Matching) -> Tensor:
        """Return the difference of each row."""
        return Cost()(matching) - matching.coupling.row_cost(held=self.detach)


@dataclass(frozen=True, repr=False)
class LogMean(Part):
    """log of the mean of the kernel over the compared pairs: low where the embeddings spread out.

    Raises:
        UsageError: in the call, where there is no pair.

    Source: the uniformity of Wang and Isola (2020), eq. 2, with a kernel exp(-2 |x - y|^2).
    """

    def __call__(self, matching: Matching) -> Tensor:
        """Return log mean K."""
        check(matching.block.size > 1, "z0: uniformity needs at least 2 items, got 1.")
        return log_mean(matching)


@dataclass(frozen=True, repr=False)
class PlanUniformity(Part):
    """KL(Q | P), Q the plan with its mass on negatives spread evenly over them: it asks for no more than even
    negatives.

    With the cosine cost it takes no pass over the pairs.

    Source: the uniformity penalty of inverse optimal transport for contrastive learning, eq. 19-20.
    """

    def __call__(self, matching: Matching) -> Tensor:
        """Return the penalty."""
        coupling, negatives = matching.coupling, matching.block.negatives()
        on_positives = coupling.log_at(*matching.block.positives).exp().sum()
        by_row, by_column = negatives.counts(coupling.f), negatives.T.counts(coupling.g)
        count = by_row.sum()
        mean = (coupling.mass() - on_positives) / count.clamp_min(1)
        log_total = coupling.geometry.log_kernel.row_inner(negatives).sum()
        log_total = log_total + by_row @ coupling.f + by_column @ coupling.g
        # With no negatives, or none that has mass, there is nothing to spread: 0, without gradient.
        return mean * (count * torch.where(mean > 0, mean, 1).log() - log_total)


@dataclass(frozen=True, repr=False)
class MarginalPenalty(Part):
    """KL of the masses of rows and columns from uniform ones: what a plan pays for mass that it creates or lets go."""

    def __call__(self, matching: Matching) -> Tensor:
        """Return KL(P 1 | a) + KL(P^T 1 | b)."""
        coupling = matching.coupling
        return _kl_from_uniform(coupling.log_row_mass()) + _kl_from_uniform(coupling.log_column_mass())


def log_mean(matching: Matching) -> Tensor:
    """Return log of the mean of the kernel over the compared pairs; 0, without gradient, where there are none.

    It takes one pass unless the plan has left it known.
    """
    coupling = matching.coupling
    by_row = coupling.log_row_mass() - coupling.f
    count = matching.block.compared().counts(coupling.f).sum()
    compared = count > 0
    return torch.where(compared, by_row, 0).logsumexp(0) - torch.where(compared, count, len(by_row)).log()


def _kl_from_uniform(log_mass: Tensor) -> Tensor:
    mass, size = log_mass.exp(), len(log_mass)
    present = mass > 0
    return (mass * (torch.where(present, log_mass, 0) + math.log(size) - 1)).sum() + 1
