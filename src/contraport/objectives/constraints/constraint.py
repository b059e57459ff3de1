"""Base class of constraints, and the constraints `Free`, `Simplex` and `Exact`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from contraport.engine import Geometry, cached_until_result_written, row_log_sums, traceable_log
from contraport.errors import check, import_optional
from contraport.objectives.auction import solve_assignment_and_potentials
from contraport.objectives.layouts import BooleanFieldCheckMixin, PairPattern
from contraport.objectives.plan import DensePlan, Plan

LogMarginals: TypeAlias = tuple[Tensor, Tensor]
"""Logs of the prescribed marginals, log a of the rows, (N,), and log b of the columns, (M,); a and b sum to 1."""


class PlanRequest(NamedTuple):
    """Arguments for computing a plan, such as marginals and column weights.

    Attributes:
        marginals: Target marginals of rows and columns; None is uniform. Constraints without marginals ignore them.
        bidirectional: Whether to solve both directions, rows to columns and columns to rows.
        log_column_weights: Log weights of the columns, (M,): the plan is that of the kernel w_j K_ij. Not combined with
            ``bidirectional``, as rows have no weights.
        pattern: Pattern of the block, for constraints that require ids; None if pairs outside the pattern are compared
            too.
        ids: Id of each item of the pattern, (n,), or None.
    """

    marginals: LogMarginals | None = None
    bidirectional: bool = False
    log_column_weights: Tensor | None = None
    pattern: PairPattern | None = None
    ids: Tensor | None = None


class Constraint(BooleanFieldCheckMixin, ABC):
    """Base class of constraints, sets of allowed plans that usually have mass 1.

    Attributes:
        differentiable: Whether the plan is differentiable with respect to the embeddings.
        requires_ids: Whether the constraint keeps a state for each item, so that a call needs ``ids=``. Its plan is
            then that of the whole data, of which the block has a part of the entries.
        marginals: Target marginals of rows and columns: ``"weights"``, the weights of the items, or ``"uniform"``.
    """

    differentiable: ClassVar[bool] = True
    requires_ids: ClassVar[bool] = False
    marginals: Literal["uniform", "weights"] = "uniform"

    @property
    def has_exact_zeros(self) -> bool:
        """True if entries of the plan can be exactly zero."""
        return False

    @property
    def fixes_both_marginals(self) -> bool:
        """True if the masses of rows and of columns are both prescribed exactly."""
        return False

    @property
    def requires_weights(self) -> bool:
        """True if the constraint requires ``weights=`` as the marginals of the plan."""
        return self.marginals == "weights"

    @abstractmethod
    def __call__(self, geometry: Geometry, request: PlanRequest = PlanRequest()) -> list[Plan]:
        """Return the plan and, if requested, that of the transposed problem.

        Args:
            geometry: compared pairs, (N, M).
            request: marginals, directions and column weights.

        Raises:
            UsageError: the constraint does not support column weights.
        """


@cached_until_result_written
def uniform_log_marginals(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> LogMarginals:
    """Return cached uniform log marginals of rows, (N,), and columns, (M,)."""
    like = torch.empty(0, dtype=dtype, device=device)
    return like.new_zeros(rows) - traceable_log(rows, like), like.new_zeros(columns) - traceable_log(columns, like)


def log_marginals_or_uniform(geometry: Geometry, request: PlanRequest) -> LogMarginals:
    """Return the log marginals that the caller requests, or uniform ones by default."""
    if request.marginals is not None:
        return request.marginals
    like = geometry.log_kernel.inputs[0]
    log_a, log_b = uniform_log_marginals(*geometry.shape, like.dtype, like.device)
    return log_a.clone(), log_b.clone()  # plans hand them out, and a write must not reach the cached ones


@dataclass(frozen=True, repr=False)
class Free(Constraint):
    """No constraint: the plan is diag(a) K, the kernel with its rows weighted by the row marginal a.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Free(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.5000, 0.1839],
            [0.1839, 0.5000]])
    """

    def __call__(self, geometry: Geometry, request: PlanRequest = PlanRequest()) -> list[Plan]:
        log_a, log_b = log_marginals_or_uniform(geometry, request)
        plans = [Plan(geometry, log_a, request.log_column_weights, log_marginals=(log_a, log_b))]
        if request.bidirectional:
            plans.append(Plan(geometry.T, log_b, None, log_marginals=(log_b, log_a)))
        return plans


@dataclass(frozen=True, repr=False)
class Simplex(Constraint):
    """Constraint of total mass 1, P = K / sum K (t-SNE, t-SimCLR).

    Source: the set U(1) of inverse optimal transport.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Simplex(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.3655, 0.1345],
            [0.1345, 0.3655]])
    """

    def __call__(self, geometry: Geometry, request: PlanRequest = PlanRequest()) -> list[Plan]:
        log_row_sums = row_log_sums(geometry, request.log_column_weights)
        # From row sums: one pass over the pairs gives the total and, divided by it, the row masses.
        log_mass = log_row_sums.logsumexp(0)
        f, log_row_mass = (-log_mass).expand_as(log_row_sums), log_row_sums - log_mass
        plan = Plan(geometry, f, request.log_column_weights, log_row_mass, has_unit_mass=True)
        if not request.bidirectional:
            return [plan]
        # Not plan.T: the total is divided off the rows in each direction, where `LogSumKernel` leaves it out.
        g = (-log_mass).expand(geometry.shape[1])
        return [plan, Plan(geometry.T, g, None, cached_log_column_mass=log_row_mass, has_unit_mass=True)]


@dataclass(frozen=True, repr=False)
class Exact(Constraint):
    """Exact optimal transport, the plan of least cost with both marginals.

    It is for inspection and evaluation only. The dual potentials of the plan have f_i + g_j <= C_ij, with equality
    where it has mass.

    The plan is piecewise constant and has no gradient. Sets of equal size without masses are solved as an assignment,
    in a fraction of the time. Needs SciPy.

    Raises:
        UsageError: SciPy is missing, a cost is NaN, or every plan has mass on masked pairs.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Exact(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    differentiable: ClassVar[bool] = False
    has_exact_zeros: ClassVar[bool] = True
    fixes_both_marginals: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(self, geometry: Geometry, request: PlanRequest = PlanRequest()) -> list[Plan]:
        check(request.log_column_weights is None, f"column_weights: not supported by {self!r}.", "conflict")
        optimize = import_optional("scipy.optimize", "train", "The constraint Exact")
        # Double precision, in which the solvers of SciPy work.
        s = geometry.dense().double()
        n, m = s.shape
        cost = (-s).cpu().numpy()
        good = not np.isnan(cost).any() and np.isfinite(cost).any()
        check(good, "constraint: Exact requires finite costs, got NaN or infinity; see the embeddings.", "not_finite")
        log_a, log_b = log_marginals_or_uniform(geometry, request)
        if n == m and request.marginals is None:
            # With equal uniform marginals an optimal plan is a permutation, which is found faster.
            try:
                columns, f, g = solve_assignment_and_potentials(optimize.linear_sum_assignment, cost)
            except ValueError as error:
                check(False, f"constraint: no exact plan avoids the masked pairs ({error}).", "infeasible")
            masses = torch.zeros_like(s)
            masses[torch.arange(n), torch.from_numpy(columns)] = 1 / n
        else:
            sparse = import_optional("scipy.sparse", "train", "The constraint Exact")
            rows, columns = np.isfinite(cost).nonzero()  # of the pairs that are not masked
            pairs = np.arange(len(rows))
            incidence = [
                sparse.csr_matrix((np.ones(len(pairs)), (side, pairs)), (size, len(pairs)))
                for side, size in ((rows, n), (columns, m))
            ]
            a, b = (v.double().exp().cpu().numpy() for v in (log_a, log_b))
            sums = np.concatenate([a / a.sum(), b / b.sum()])
            equalities = {"A_eq": sparse.vstack(incidence), "b_eq": sums}
            solution = optimize.linprog(cost[rows, columns], **equalities, method="highs")
            check(solution.status == 0, f"constraint: no exact plan exists ({solution.message}).", "infeasible")
            masses = torch.zeros_like(s)
            # Solved for a total of 1, as the tolerances of the solver are absolute.
            masses[torch.from_numpy(rows), torch.from_numpy(columns)] = torch.from_numpy(a.sum() * solution.x).to(s)
            f, g = np.split(solution.eqlin.marginals, [n])
        row_potentials, column_potentials = (
            geometry.log_kernel.cost_unit * torch.from_numpy(potential).to(s) for potential in (f, g)
        )
        plan = DensePlan.from_masses(masses, geometry, (log_a, log_b), (row_potentials, column_potentials))
        return [plan, plan.T] if request.bidirectional else [plan]
