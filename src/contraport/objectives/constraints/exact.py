"""Unregularized optimal transport as a constraint, solved by linear programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from contraport.engine import Geometry, MatrixLogKernel
from contraport.errors import check, import_optional
from contraport.objectives.constraints.constraint import DEFAULT_REQUEST, Constraint, PlanRequest, uniform_log_marginals
from contraport.objectives.plan import Plan


@dataclass(frozen=True, repr=False)
class Exact(Constraint):
    """Exact optimal transport (Kantorovich): the plan of least cost with both marginals, for inspection and evaluation.

    The plan is piecewise constant and has no gradient. Needs SciPy.

    Raises:
        UsageError: SciPy is missing, or every plan has mass on masked pairs.

    >>> import torch, contraport as cp
    >>> loss = cp.Objective(cp.Cross(), cp.Gibbs("cosine", 1.0), cp.Exact(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(2), torch.eye(2))
    tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]])
    """

    differentiable: ClassVar[bool] = False

    @property
    def has_exact_zeros(self) -> bool:
        return True

    @torch.no_grad()
    def __call__(self, geometry: Geometry, request: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        check(request.log_weights is None, f"column_weights: not supported by {self!r}.", "conflict")
        optimize = import_optional("scipy.optimize", "train", "The constraint Exact")
        # Double precision, in which the solvers of SciPy work.
        s = geometry.dense().double()
        n, m = s.shape
        cost = (-s).cpu().numpy()
        log_a, log_b = request.marginals or uniform_log_marginals(geometry)
        if n == m and request.marginals is None:
            # With equal uniform marginals an optimal plan is a permutation, which the Hungarian method finds faster.
            try:
                rows, columns = optimize.linear_sum_assignment(cost)
            except ValueError as error:
                check(False, f"constraint: no exact plan avoids the masked pairs ({error}).", "infeasible")
            masses = torch.zeros_like(s)
            masses[rows, columns] = 1 / n
        else:
            a, b = (v.double().exp().cpu().numpy() for v in (log_a, log_b))
            masses = torch.as_tensor(_solve_transport(cost, a, b)).to(s)
        matrix = masses.log().to(log_a)
        plan = Plan(Geometry(MatrixLogKernel(matrix)), None, None, log_marginals=(log_a, log_b))
        return [plan, plan.T] if request.reciprocal else [plan]


def _solve_transport(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the plan of least cost with row masses a and column masses b; pairs of infinite cost are excluded."""
    optimize, sparse = (
        import_optional(f"scipy.{part}", "train", "The constraint Exact") for part in ("optimize", "sparse")
    )
    n, m = cost.shape
    rows, columns = np.isfinite(cost).nonzero()
    pairs = np.arange(len(rows))
    incidence = [
        sparse.csr_matrix((np.ones(len(pairs)), (side, pairs)), (size, len(pairs)))
        for side, size in ((rows, n), (columns, m))
    ]
    marginals = np.concatenate([a / a.sum(), b / b.sum()])
    solution = optimize.linprog(cost[rows, columns], A_eq=sparse.vstack(incidence), b_eq=marginals, method="highs")
    check(solution.status == 0, f"constraint: no exact plan exists ({solution.message}).", "infeasible")
    plan = np.zeros_like(cost)
    plan[rows, columns] = solution.x
    return plan
