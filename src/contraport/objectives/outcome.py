"""An outcome: what is compared, what is wanted of it, and what came out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from contraport.objectives.layouts import Block
from contraport.objectives.plan import Plan
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False)
class Outcome:
    """One direction of one block, on which divergences and penalties are evaluated.

    Attributes:
        block: the compared pairs, (N, M).
        target: the plan that is wanted.
        plan: the plan that came out.
        importance: the factor of each row, (N,), 0 for those that want nothing, under which the mass of the target is
            1; None where it is 1 throughout.
        ids: identity of each item, (n,), where it is known.
    """

    block: Block
    target: TargetPlan
    plan: Plan
    importance: Tensor | None = None
    ids: Tensor | None = None

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of what a divergence gives for the rows, (N,), weighted; what is no sum stays as it is."""
        if values.ndim == 0:
            return values
        return values.sum() if self.importance is None else self.importance @ values

    def by_row(self, values: Tensor) -> Tensor:
        """Return what a divergence gives for the rows, (N,), weighted so that its mean is their sum."""
        values = len(values) * values
        return values if self.importance is None else self.importance * values
