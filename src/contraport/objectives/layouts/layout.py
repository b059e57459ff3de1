"""What a layout is: it turns the views of a batch into blocks of compared pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor

from contraport.errors import UsageError
from contraport.objectives.answer import Answer
from contraport.objectives.layouts.block import Block


class Traits(NamedTuple):
    """What is true of a layout, whatever it is called on.

    Attributes:
        shared_columns: whether the last view is not of items: any number of columns, the same on every process.
        attracts_to_fixed: whether the columns are held fixed.
        takes_several: whether a training calls it on all views at once, rather than on two at a time.
        matches_views: whether it takes the views of an item for positives of one another.
        compares_positives: whether a row's positives are among what it is compared with.
        of_items: whether rows and columns show items, of which something may be known.
        guided: whether it depends on features of the items, ``features=`` of the call, what is compared in a direction.
        guided_by_views: whether it is so by those of each view alone: those of whole items change nothing.
        core: whether a training on more than two views calls it on the pairs that the first view is in alone.
    """

    shared_columns: bool = False
    attracts_to_fixed: bool = False
    takes_several: bool = False
    matches_views: bool = True
    compares_positives: bool = True
    of_items: bool = True
    guided: bool = False
    guided_by_views: bool = False
    core: bool = False


class Layout(Answer, ABC):
    """Turns the views of a batch, tensors (n, d), into blocks of compared pairs."""

    @property
    def traits(self) -> Traits:
        """What is true of it, whatever it is called on."""
        return Traits()

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
