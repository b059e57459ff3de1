"""A target: the rule that says which plan is wanted on a block."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.errors import UsageError
from contraport.objectives.answer import Answer
from contraport.objectives.inputs import Attributes, Call
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target_plan import TargetPlan


class Target(Answer, ABC):
    """A rule that says which plan is wanted on a block, from what is known of the items."""

    @property
    def from_views(self) -> bool:
        """Whether the views alone say what is wanted, so that there must be several, of the same items."""
        return False

    @property
    def complete(self) -> bool:
        """Whether the plan has all its mass where all views are there: no row may turn out to want nothing."""
        return False

    @property
    def asks_features(self) -> bool:
        """Whether it needs ``features=`` of the call."""
        return False

    @abstractmethod
    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of total mass 1, less where some rows have nothing that they could want."""

    def mirrored(self) -> Target:
        """Return the rule for the same block with rows and columns exchanged."""
        return self

    @property
    def form(self) -> str:
        """The kind of the target, on which the processes of a call must agree."""
        return type(self).__name__

    def check_call(self, call: Call) -> None:
        """Raise `UsageError` where the target does not fit the items of this process; nothing is gathered."""

    def among(self, processes: Processes, call: Call) -> Target:
        """Return the rule for the items of all processes, where it names items by their place in this one's call."""
        return self

    def gathered(self) -> Target:
        """Return the rule with what it knows of each process's rows, for columns that show no items.

        Raises:
            UsageError: it is a rule about items.
        """
        raise UsageError(f"target: nothing is positive with shared columns; expected a matrix, got {self!r}.")


def shared_out(wanted: Tensor) -> Tensor:
    """Return what is wanted, (N, M), with each row scaled to mass 1/N; a row that wants nothing stays so."""
    total = wanted.sum(1, keepdim=True)
    return wanted / (torch.where(total > 0, total, 1) * len(wanted))
