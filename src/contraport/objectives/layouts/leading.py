"""Another layout over the first coordinates of the embeddings."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from contraport.errors import check
from contraport.objectives.layouts.block import Block
from contraport.objectives.layouts.layout import Layout


@dataclass(frozen=True, repr=False)
class Leading(Layout):
    """Another layout over the first coordinates of each embedding only.

    Args:
        dimensions: how many coordinates, at least 1.
        layout: the layout.

    Raises:
        UsageError: dimensions is not positive or, in the call, larger than the embeddings have.
    """

    dimensions: int
    layout: Layout

    def __post_init__(self) -> None:
        good = isinstance(self.dimensions, int) and self.dimensions >= 1
        check(good, f"dimensions: expected a whole number from 1 on, got {self.dimensions!r}.")

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the other layout's blocks."""
        d = views[0].shape[1]
        check(self.dimensions <= d, f"dimensions: expected at most {d}, the embeddings' size, got {self.dimensions}.")
        return self.layout(*(z[:, : self.dimensions] for z in views))

    @property
    def shared_columns(self) -> bool:
        """Whether the last view of the other layout is not of items."""
        return self.layout.shared_columns

    @property
    def takes_several(self) -> bool:
        """Whether the other layout takes any number of views."""
        return self.layout.takes_several

    def further(self, negatives: Tensor) -> Tensor:
        """Return the first coordinates of further columns, as the other layout compares them."""
        return self.layout.further(negatives[:, : self.dimensions])

    @property
    def attracts_to_fixed(self) -> bool:
        """Whether the other layout holds the columns fixed."""
        return self.layout.attracts_to_fixed
