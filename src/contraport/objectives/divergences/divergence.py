"""Base class of divergences between target plan and solved plan, and of penalties.

They read both plans through sums over rows, and never an (N, M) matrix. A divergence that is a sum over rows returns
one value per row: the objective weights the rows, leaves out those without target mass, and sums.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

from contraport.errors import check
from contraport.objectives.constraints import Constraint
from contraport.objectives.layouts import BooleanFieldCheckMixin
from contraport.objectives.plan import PlanWithTarget

ValuesPerRow: TypeAlias = Tensor
"""Tensor of one value for each row of a block, (N,)."""


class Divergence(BooleanFieldCheckMixin, ABC):
    """Base class of divergences from the target plan and of penalties on plans.

    Attributes:
        repels: Whether the divergence pushes any embeddings apart.
        supports_column_weights: Whether the divergence supports ``column_weights=`` of the call.
        depends_on_constraint: Whether the value depends on the constraint, rather than on the kernel alone.
        requires_ids: Whether the divergence keeps a state for each item, so that a call needs ``ids=``.
    """

    repels: ClassVar[bool] = True
    supports_column_weights: ClassVar[bool] = True
    depends_on_constraint: ClassVar[bool] = True
    requires_ids: ClassVar[bool] = False

    @property
    def has_temperature_gradient(self) -> bool:
        """True if the divergence has a gradient with respect to the temperature."""
        return True

    def constraint_conflict_message(self, constraint: Constraint) -> str | None:
        """Return why the divergence does not support a constraint, or None."""
        if constraint.requires_ids and self.depends_on_constraint:
            return f"{self!r} sums over the pairs of a plan, of which {constraint!r} has those of the batch; use KL."
        return None

    @abstractmethod
    def __call__(self, result: PlanWithTarget) -> Tensor:
        """Return the divergence as `ValuesPerRow` that sum to it, or as a scalar."""


class KernelDivergence(Divergence, ABC):
    """Base class of divergences that need only the kernel, not the plan."""

    supports_column_weights: ClassVar[bool] = False
    depends_on_constraint: ClassVar[bool] = False


def check_has_negatives(result: PlanWithTarget) -> None:
    """Raise `UsageError` if a block has no negatives, as with a single item."""
    pattern = result.block.pattern
    good = pattern.num_items > 1 or pattern.num_extra_columns > 0
    message = "z0: must have at least 2 items, or 2 coordinates where these are compared, as this objective needs "
    check(good, f"{message}negatives, got 1.", "single_item")


def replace_zeros_by_one(mass: Tensor) -> Tensor:
    """Return masses with ones in place of zeros, safe to divide by."""
    return torch.where(mass > 0, mass, 1)


def scale_rows_by_target_mass(result: PlanWithTarget, values: ValuesPerRow) -> ValuesPerRow:
    """Multiply one value per row by the row's target mass, (N,)."""
    a = result.target.row_mass()
    return a * torch.where((a > 0) & (values != -torch.inf), values, 0)


def log_candidate_counts_per_row(result: PlanWithTarget) -> ValuesPerRow:
    """Return the log of each row's number of compared pairs, (N,)."""
    return result.block.pattern.compared_pairs().row_counts(result.plan.f.dtype).clamp_min(1).log()


def log_mean_kernel_of_block(result: PlanWithTarget) -> Tensor:
    """Return the log of the mean kernel over the compared pairs.

    It is 0, without gradient, if there are none. It takes one pass over the pairs unless the plan has the row sums
    cached.
    """
    plan = result.plan
    log_row_sums = plan.kernel_log_row_sums()
    count = result.block.pattern.compared_pairs().row_counts(plan.f.dtype).sum()
    nonempty = count > 0
    total = torch.where(nonempty, log_row_sums, 0).logsumexp(0)
    return total - torch.where(nonempty, count, len(log_row_sums)).log()
