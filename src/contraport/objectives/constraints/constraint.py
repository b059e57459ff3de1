"""Constraints: sets of allowed plans, and the two that know no rows and columns: no limit at all, the total mass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from contraport.engine import Axis, Geometry, log_size, log_sums
from contraport.objectives.plan import Plan
from contraport.objectives.repr_mixin import ReprMixin

Marginals: TypeAlias = tuple[Tensor, Tensor]
"""log a, (N,), and log b, (M,): the masses that rows and columns should have; each adds up to 1."""


class PlanRequest(NamedTuple):
    """What is asked of a plan beside the pairs.

    Attributes:
        marginals: what rows and columns should carry, uniform where None. A constraint that has no marginal takes no
            notice of it.
        reciprocal: whether both directions are asked for.
        log_weights: log w, (M,), of a reference measure of the columns: the plan is that of the kernel w_j K_ij. Not
            with ``reciprocal``, as the rows have none.
    """

    marginals: Marginals | None = None
    reciprocal: bool = False
    log_weights: Tensor | None = None


DEFAULT_REQUEST = PlanRequest()
"""Uniform marginals, one direction, no reference measure."""


class Constraint(ReprMixin, ABC):
    """An allowed set; the total mass is 1 unless said otherwise.

    Attributes:
        differentiable: whether its plan has a gradient.
        marginals: ``"weights"`` where rows and columns have the mass of their items' weights, else ``"uniform"``.
    """

    differentiable: ClassVar[bool] = True
    marginals: str = "uniform"

    @property
    def has_exact_zeros(self) -> bool:
        """Whether its plan has exact zeros, on which a logarithm is infinite."""
        return False

    @property
    def requires_weights(self) -> bool:
        """Whether rows and columns have the mass of their items' weights rather than equal masses."""
        return self.marginals == "weights"

    @abstractmethod
    def __call__(self, geometry: Geometry, asked: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        """Return the plan of the rows with the columns and, if asked for, that of the columns with the rows.

        Args:
            geometry: the compared pairs, (N, M).
            asked: what is asked of the plan beside these.

        Raises:
            UsageError: it knows no reference measure.
        """


def uniform_marginals(geometry: Geometry) -> Marginals:
    """Return log 1/N, (N,), and log 1/M, (M,)."""
    like, (n, m) = geometry.log_kernel.inputs[0], geometry.shape
    return like.new_zeros(n) - log_size(n, like), like.new_zeros(m) - log_size(m, like)


def directions(geometry: Geometry, asked: PlanRequest) -> list[tuple[Geometry, Marginals]]:
    """Return the pairs with their marginals and, if reciprocal, both with rows and columns exchanged."""
    log_a, log_b = asked.marginals or uniform_marginals(geometry)
    forth = geometry, (log_a, log_b)
    return [forth, (geometry.T, (log_b, log_a))] if asked.reciprocal else [forth]


@dataclass(frozen=True, repr=False)
class Free(Constraint):
    """Every nonnegative plan is allowed: P = diag(a) K, no normalisation at all.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.5000, 0.1839],
            [0.1839, 0.5000]])
    """

    def __call__(self, geometry: Geometry, asked: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        """Return the plan of each direction."""
        plans = []
        for pairs, (log_a, log_b) in directions(geometry, asked):
            g, zero = _start(len(log_b), log_b, asked.log_weights)
            plans.append(Plan(pairs, log_a, g, zero=zero, log_marginals=(log_a, log_b)))
        return plans


@dataclass(frozen=True, repr=False)
class Simplex(Constraint):
    """The total mass is 1: P = K / sum K, the plan of t-SNE.

    Source: the set U(1) of inverse optimal transport.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Simplex(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def __call__(self, geometry: Geometry, asked: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        """Return the plan of each direction."""
        g, zero = _start(geometry.shape[1], geometry.log_kernel.inputs[0], asked.log_weights)
        by_row = log_sums(geometry, "rows", g)
        log_mass = by_row.logsumexp(0)
        plan = Plan(geometry, (-log_mass).expand_as(by_row), g, by_row - log_mass, zero=zero, unit_mass=True)
        return [plan, plan.T] if asked.reciprocal else [plan]


def _start(columns: int, like: Tensor, log_weights: Tensor | None) -> tuple[Tensor, tuple[Axis, ...]]:
    """Return the potential of the columns under their reference measure, and the axes whose potential is zero."""
    if log_weights is not None:
        return log_weights, ()
    return like.new_zeros(columns), ("columns",)
