"""Transport without a regulariser, by linear programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from contraport.engine import Geometry, MatrixLogKernel
from contraport.errors import check, import_optional
from contraport.objectives.constraints.constraint import DEFAULT_REQUEST, Constraint, PlanRequest, uniform_marginals
from contraport.objectives.plan import Plan


@dataclass(frozen=True, repr=False)
class Exact(Constraint):
    """The plan of least cost with both marginals and no regulariser (Kantorovich): for looking and evaluation.

    It is piecewise constant, so that no gradient comes from it. Needs SciPy.

    Raises:
        UsageError: SciPy is missing, or no plan avoids the masked pairs.

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
    def __call__(self, geometry: Geometry, asked: PlanRequest = DEFAULT_REQUEST) -> list[Plan]:
        """Return the plan of each direction."""
        check(asked.log_weights is None, f"column_weights: {self!r} has no reference measure; expected none.")
        optimize = import_optional("scipy.optimize", "train", "The constraint Exact")
        s = geometry.dense().double()
        n, m = s.shape
        cost = (-s).cpu().numpy()
        log_a, log_b = asked.marginals or uniform_marginals(geometry)
        if n == m and asked.marginals is None:
            try:
                rows, columns = optimize.linear_sum_assignment(cost)
            except ValueError as error:
                check(False, f"constraint: no exact plan avoids the masked pairs ({error}).")
            masses = torch.zeros_like(s)
            masses[rows, columns] = 1 / n
        else:
            masses = torch.as_tensor(_transport(cost, *(v.double().exp().cpu().numpy() for v in (log_a, log_b)))).to(s)
        matrix = masses.log().to(log_a)
        zeros = torch.zeros_like(log_a), torch.zeros_like(log_b)
        plan = Plan(Geometry(MatrixLogKernel(matrix)), *zeros, log_marginals=(log_a, log_b))
        return [plan, plan.T] if asked.reciprocal else [plan]


def _transport(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the plan of least cost with row masses a and column masses b, by linear programming; infinite cost forbids
    a pair.
    """
    optimize, sparse = (
        import_optional(f"scipy.{part}", "train", "The constraint Exact") for part in ("optimize", "sparse")
    )
    n, m = cost.shape
    rows, columns = np.isfinite(cost).nonzero()
    pairs = np.arange(len(rows))
    masses = sparse.vstack(
        [
            sparse.csr_matrix((np.ones(len(pairs)), (side, pairs)), (size, len(pairs)))
            for side, size in ((rows, n), (columns, m))
        ]
    )
    solution = optimize.linprog(
        cost[rows, columns], A_eq=masses, b_eq=np.concatenate([a / a.sum(), b / b.sum()]), method="highs"
    )
    check(solution.status == 0, f"constraint: no exact plan was found ({solution.message}).")
    plan = np.zeros_like(cost)
    plan[rows, columns] = solution.x
    return plan
