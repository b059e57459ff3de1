"""Transport costs: attraction, and the game of attraction against weighted repulsion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from contraport.objectives.answer import Answer
from contraport.objectives.divergences.divergence import Divergence
from contraport.objectives.outcome import Outcome


@dataclass(frozen=True, repr=False)
class Cost(Answer, Divergence):
    """The transport cost of the target, <t, C>: how far apart the wanted pairs are; attraction without repulsion."""

    repels: ClassVar[bool] = False

    def __call__(self, outcome: Outcome) -> Tensor:
        """Return the cost of each row."""
        cost_kernel = outcome.plan.cost_kernel
        return -cost_kernel.unit * outcome.target.row_inner(cost_kernel)


@dataclass(frozen=True, repr=False)
class Energy(Answer, Divergence):
    """The transport cost of the target less that of the plan, <t, C> - <P, C>: attraction against weighted repulsion.

    It is minus the energy of the min-max game: the plan has chosen the pair weights, the encoder now plays against
    them.

    Args:
        detach: hold the plan fixed. With `Rows` the gradient is then temperature times that of KL.

    Source: Tian (2022), Understanding deep contrastive learning via coordinate-wise optimization, eq. 3-5.
    """

    detach: bool = True

    def __call__(self, outcome: Outcome) -> Tensor:
        """Return the difference of each row."""
        return Cost()(outcome) - outcome.plan.row_cost(held=self.detach)
