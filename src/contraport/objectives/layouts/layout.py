"""What a layout is: it turns the views of a batch into blocks of compared pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from contraport.errors import UsageError
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
        """Whether a training calls it on all views at once, rather than on two at a time."""
        return False

    @property
    def matches_views(self) -> bool:
        """Whether it takes the views of an item for positives of one another."""
        return True

    @property
    def compares_positives(self) -> bool:
        """Whether a row's positives are among what it is compared with."""
        return True

    @property
    def of_items(self) -> bool:
        """Whether rows and columns show items, of which something may be known."""
        return True

    @property
    def guided(self) -> bool:
        """Whether it depends on features of the items, ``features=`` of the call, what is compared in a direction."""
        return False

    def guide(self, block: Block, features: tuple[Tensor, Tensor]) -> Block:
        """Return one direction of a block as it is under features of its rows and columns, (N, k) and (M, k)."""
        return block

    def sizes(self, similarities: tuple[int, int], items: int | None) -> tuple[int, ...]:
        """Return how many rows each view has whose similarities a matrix holds.

        Args:
            similarities: its shape.
            items: of how many something is known, or None.

        Raises:
            UsageError: the layout compares no rows with columns by one matrix, or the shape is none that it has.
        """
        raise UsageError(f"similarities: expected embeddings, as {self!r} has no one matrix of rows and columns.")

    @abstractmethod
    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the blocks."""

    def further(self, negatives: Tensor) -> Tensor:
        """Return what is compared of further columns, (k, d)."""
        return negatives
