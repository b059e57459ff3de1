"""Base class of constraints, and the two without marginals: no constraint at all, and a fixed total mass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

from torch import Tensor

from contraport.engine import Axis, Geometry, log_size, log_sums
from contraport.objectives.plan import Plan
from contraport.objectives.repr_mixin import ReprMixin

Marginals: TypeAlias = tuple[Tensor, Tensor]
"""Target marginals log a, (N,), and log b, (M,), of rows and columns; each sums to 1."""


class PlanRequest(NamedTuple):
    """Options of a constraint's solver.

    Attributes:
        marginals: of rows and columns, None is uniform. Constraints without marginals ignore them.
        reciprocal: whether to solve both directions, rows to columns and columns to rows.
        log_weights: log w, (M,), of a reference measure of the columns: the plan is that of the kernel w_j K_ij. Not
            with ``reciprocal``, as rows have no weights.
    """

    marginals: Marginals | None = None
    reciprocal: bool = False
    log_weights: Tensor | None = None


DEFAULT_REQUEST = PlanRequest()
"""Uniform marginals, one direction, no reference measure."""


class Constraint(ReprMixin, ABC):
    """Set of allowed plans, of total mass 1 unless documented otherwise.

    Attributes:
        differentiable: whether the plan has a gradient.
        marginals: ``"weights"`` if the weights of the items are the marginals, else ``"uniform"``.
    """

    differentiable: ClassVar[bool] = True
    marginals: str = "uniform"

    @property
    def has_exact_zeros(self) -> bool:
        """Whether the plan has exact zeros, whose logarithm is infinite."""
        return False

    @property
    def requires_weights(self) -> bool:
        """Whether the marginals are the weights of the items rather than uniform."""
        return self.marginals == "weights"

    @abstractmethod
    def __call__(self, geometry: Geometry, request: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        """Return the plan from rows to columns and, if reciprocal, the plan from columns to rows.

        Args:
            geometry: compared pairs, (N, M).
            request: marginals, directions and reference measure.

        Raises:
            UsageError: the constraint does not support a reference measure.
        """


def uniform_marginals(geometry: Geometry) -> Marginals:
    """Return log 1/N, (N,), and log 1/M, (M,)."""
    like, (n, m) = geometry.log_kernel.inputs[0], geometry.shape
    return like.new_zeros(n) - log_size(n, like), like.new_zeros(m) - log_size(m, like)


def requested_directions(geometry: Geometry, request: PlanRequest) -> list[tuple[Geometry, Marginals]]:
    """Return pairs and marginals of each requested direction."""
    log_a, log_b = request.marginals or uniform_marginals(geometry)
    forward = geometry, (log_a, log_b)
    return [forward, (geometry.T, (log_b, log_a))] if request.reciprocal else [forward]


@dataclass(frozen=True, repr=False)
class Free(Constraint):
    """No constraint: the plan is the kernel with rows scaled by the marginal, P = diag(a) K, without normalization.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.5000, 0.1839],
            [0.1839, 0.5000]])
    """

    def __call__(self, geometry: Geometry, request: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        plans = []
        for pairs, (log_a, log_b) in requested_directions(geometry, request):
            g, zero_axes = _initial_column_potential(len(log_b), log_b, request.log_weights)
            plans.append(Plan(pairs, log_a, g, zero_axes=zero_axes, log_marginals=(log_a, log_b)))
        return plans


@dataclass(frozen=True, repr=False)
class Simplex(Constraint):
    """Total mass 1: P = K / sum K, the plan of t-SNE and t-SimCLR.

    Source: the set U(1) of inverse optimal transport.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Simplex(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def __call__(self, geometry: Geometry, request: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        g, zero_axes = _initial_column_potential(geometry.shape[1], geometry.log_kernel.inputs[0], request.log_weights)
        log_row_sums = log_sums(geometry, "rows", g)
        log_mass = log_row_sums.logsumexp(0)
        f = (-log_mass).expand_as(log_row_sums)
        plan = Plan(geometry, f, g, log_row_sums - log_mass, zero_axes=zero_axes, has_unit_mass=True)
        return [plan, plan.T] if request.reciprocal else [plan]


def _initial_column_potential(
    columns: int, like: Tensor, log_weights: Tensor | None
) -> tuple[Tensor, tuple[Axis, ...]]:
    """Return the potential of the columns under their reference measure, and the axes whose potential is zero."""
    if log_weights is not None:
        return log_weights, ()
    return like.new_zeros(columns), ("columns",)
