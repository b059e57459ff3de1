"""A target: the rule that says which plan is wanted on a block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from contraport.errors import UsageError
from contraport.objectives.answer import Answer
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target_plan import TargetPlan

Attributes = Mapping[str, Tensor]
"""What is known of the items of a batch: ``labels``, ``domains``, ``ids``, ``weights``, each (n,)."""


class Target(Answer, ABC):
    """A rule that says which plan is wanted on a block, from what is known of the items."""

    @property
    def complete(self) -> bool:
        """Whether the plan has all its mass: no row may turn out to have nothing that it could want."""
        return False

    @abstractmethod
    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of total mass 1, less where some rows have nothing that they could want."""

    def mirrored(self) -> Target:
        """Return the rule for the same block with rows and columns exchanged."""
        return self

    def gathered(self) -> Target:
        """Return the rule with what it knows of each process's rows, for columns that show no items.

        Raises:
            UsageError: it is a rule about items.
        """
        raise UsageError(f"target: nothing is positive with shared columns; expected a matrix, got {self!r}.")


def precision_of(block: Block) -> torch.dtype:
    """Return the precision of the computation."""
    return torch.promote_types(block.x.dtype, torch.float32)
