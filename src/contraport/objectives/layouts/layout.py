"""What a layout is: it turns the views of a batch into blocks of compared pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from contraport.objectives.answer import Answer
from contraport.objectives.layouts.block import Block


class Layout(Answer, ABC):
    """Turns the views of a batch, tensors (n, d), into blocks of compared pairs."""

    @property
    def shared_columns(self) -> bool:
        """Whether the last view is not of items: any number of columns, the same on every process."""
        return False

    @property
    def attracts_to_fixed(self) -> bool:
        """Whether the columns are held fixed."""
        return False

    @property
    def takes_several(self) -> bool:
        """Whether it takes any number of views, rather than two."""
        return False

    @abstractmethod
    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the blocks."""

    def further(self, negatives: Tensor) -> Tensor:
        """Return what is compared of further columns, (k, d)."""
        return negatives
