"""A matching: what is compared, what is wanted of it, and what came out."""

from __future__ import annotations

from dataclasses import dataclass

from contraport.objectives.coupling import Coupling
from contraport.objectives.layouts import Block
from contraport.objectives.targets import TargetPlan


@dataclass(frozen=True, eq=False)
class Matching:
    """One direction of one block, on which divergences and penalties are evaluated.

    Attributes:
        block: the compared pairs, (N, M).
        target: the plan that is wanted.
        coupling: the plan that came out.
    """

    block: Block
    target: TargetPlan
    coupling: Coupling
