"""What a divergence is: a function of an outcome.

It is written with the few questions that a plan and a target plan answer, and sees no (N, M) matrix. Penalties, which
judge the plan by itself, have the same form.

What is a sum over rows is given row by row: the objective weighs the rows, leaves out those that want nothing, and adds
them up.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from contraport.engine import check_not_in_torch_func
from contraport.errors import check
from contraport.objectives.constraints import Constraint
from contraport.objectives.plan import BlockResult


class Divergence:
    """How far the plan that came out is from the plan that is wanted; or, as a penalty, what the plan is worth.

    Attributes:
        repels: whether it pushes anything apart.
        by_plan: whether it sums over pairs as the plan does, so that a reference measure of the columns is in it.
        depends_on_constraint: whether it sees which plans are allowed, rather than the kernel alone.
        requires_ids: whether it keeps something of each item between calls, and needs ``ids``.
    """

    repels: ClassVar[bool] = True
    supports_column_weights: ClassVar[bool] = True
    depends_on_constraint: ClassVar[bool] = True
    requires_ids: ClassVar[bool] = False

    @property
    def has_temperature_gradient(self) -> bool:
        """Whether its value has a gradient in the temperature, so that one can be learned."""
        return True

    def mismatch(self, constraint: Constraint) -> str | None:
        """Say why it does not go with a constraint, or None where it does."""
        return None

    @abstractmethod
    def __call__(self, outcome: BlockResult) -> Tensor:
        """Return the value of each row, (N,), whose sum is meant; or a tensor without dimensions, which is no sum."""


def updates_averages(divergence: nn.Module) -> bool:
    """Return whether a divergence moves its averages over the calls: it does in training, where gradients are taken.

    Raises:
        UsageError: it would, within `torch.func`.
    """
    moves = divergence.training and torch.is_grad_enabled()
    if moves:
        check_not_in_torch_func("averages: those over the calls do not move", "the objective in evaluation, .eval()")
    return moves


def require_negatives(outcome: BlockResult) -> None:
    """Raise `UsageError` where there is one item and nothing else to compare it with."""
    pattern = outcome.block.pattern
    good = pattern.size > 1 or pattern.strangers > 0
    check(good, "z0: this objective needs negatives: at least 2 items, got 1.")
