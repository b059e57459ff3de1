"""A custom constraint in ten lines, and its effect on the columns of a plan and on the gradient.

python examples/own_constraint.py
"""

from dataclasses import dataclass

import torch

from contraport import KL, Balanced, Cross, Gibbs, Objective, Pairs, Rows
from contraport.objectives.constraints.sinkhorn import SinkhornConstraint


@dataclass(frozen=True, repr=False)
class ColumnsThenRows(SinkhornConstraint):
    """Constraint with alternating column and row half steps; the last one fixes the row marginal."""

    iterations: int = 1

    def half_step_axes(self) -> tuple[str, ...]:
        """Return the half steps in order."""
        return ("columns", "rows") * self.iterations


torch.manual_seed(0)
z0 = torch.randn(64, 16, requires_grad=True)
z1 = z0.detach() + torch.randn(64, 16)
for constraint in (Rows(), ColumnsThenRows(1), ColumnsThenRows(10), Balanced(1000, 1e-6)):
    loss = Objective(Cross(), Gibbs("cosine", 0.1), constraint, Pairs(), KL())
    (slope,) = torch.autograd.grad(loss(z0, z1), z0)
    columns = 64 * loss.plan(z0, z1).sum(0)
    text = f"columns have {columns.min():.2f} to {columns.max():.2f} shares, gradient {slope.norm():.3f}"
    print(f"{type(constraint).__name__:16} {text}")
