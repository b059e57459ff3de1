"""Transport without a regulariser, by linear programming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from contraport.engine import Geometry, MatrixLogKernel
from contraport.errors import check, require
from contraport.objectives.constraints.constraint import Constraint, uniform_marginals
from contraport.objectives.plan import Plan


@dataclass(frozen=True, repr=False)
class Exact(Constraint):
    """The plan of least cost with both marginals and no regulariser (Kantorovich): for looking and evaluation.

    It is piecewise constant, so that no gradient comes from it. Needs SciPy.

    Raises:
        UsageError: SciPy is missing, or no plan avoids the masked pairs.
    """

    differentiable: ClassVar[bool] = False
    has_zeros: ClassVar[bool] = True

    @torch.no_grad()
    def __call__(self, geometry: Geometry, *, reciprocal: bool = False) -> list[Plan]:
        """Return the plan of each direction."""
        optimize = require("scipy.optimize", "train", "The constraint Exact")
        s = geometry.dense().double()
        n, m = s.shape
        cost = (-s).cpu().numpy()
        if n == m:
            try:
                rows, columns = optimize.linear_sum_assignment(cost)
            except ValueError as error:
                check(False, f"constraint: no exact plan avoids the masked pairs ({error}).")
            masses = torch.zeros_like(s)
            masses[rows, columns] = 1 / n
        else:
            masses = torch.as_tensor(_transport(cost)).to(s)
        log_a, log_b = uniform_marginals(geometry)
        matrix = masses.log().to(log_a)
        plan = Plan(Geometry(MatrixLogKernel(matrix)), torch.zeros_like(log_a), torch.zeros_like(log_b))
        return [plan, plan.T] if reciprocal else [plan]


def _transport(cost: np.ndarray) -> np.ndarray:
    """Return the plan of least cost between uniform marginals, by linear programming; infinite cost forbids a pair."""
    optimize, sparse = (require(f"scipy.{part}", "train", "The constraint Exact") for part in ("optimize", "sparse"))
    n, m = cost.shape
    rows, columns = np.isfinite(cost).nonzero()
    pairs = np.arange(len(rows))
    masses = sparse.vstack(
        [
            sparse.csr_matrix((np.ones(len(pairs)), (side, pairs)), (size, len(pairs)))
            for side, size in ((rows, n), (columns, m))
        ]
    )
    uniform = np.concatenate([np.full(n, 1 / n), np.full(m, 1 / m)])
    solution = optimize.linprog(cost[rows, columns], A_eq=masses, b_eq=uniform, method="highs")
    check(solution.status == 0, f"constraint: no exact plan was found ({solution.message}).")
    plan = np.zeros_like(cost)
    plan[rows, columns] = solution.x
    return plan
