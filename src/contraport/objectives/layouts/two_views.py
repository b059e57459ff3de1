"""Layouts of two views: one with the other, or both with both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import Mask, remembered
from contraport.errors import check, unknown_name
from contraport.objectives.layouts.block import Block, Pattern, nobody, paired
from contraport.objectives.layouts.layout import Layout


@dataclass(frozen=True, repr=False)
class Cross(Layout):
    """The rows are one view, the columns the other, the positives the diagonal.

    Args:
        symmetric: average both directions, view 0 to view 1 and back.
        stop_gradient: hold the columns fixed, as the target branch of BYOL is.
        shared_columns: the columns show no items but are prototypes, (k, d), say: their number is free, nothing is
            positive, so that the call needs a matrix as its target, (n, k), and under `torch.distributed` every process
            brings its own rows, of embeddings and target, and the same columns.

    Raises:
        UsageError: shared columns are to be matched to the rows as well (``symmetric``).

    >>> import torch
    >>> (block,) = Cross()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape
    (3, 3)
    """

    symmetric: bool = True
    stop_gradient: bool = False
    shared_columns: bool = False

    def __post_init__(self) -> None:
        for name in ("symmetric", "stop_gradient", "shared_columns"):
            value = getattr(self, name)
            check(isinstance(value, bool), f"{name}: expected True or False, got {value!r}.")
        check(not (self.symmetric and self.shared_columns), "shared_columns: expected symmetric=False with it.")

    @property
    def attracts_to_fixed(self) -> bool:
        """Whether the columns are held fixed."""
        return self.stop_gradient

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (n, n), or (n, k) with shared columns."""
        z0, z1 = _two("cross", views)
        z1 = z1.detach() if self.stop_gradient else z1
        if self.shared_columns:
            return [Block(_beside_prototypes(len(z0), len(z1), z0.device), z0, z1)]
        return [Block(paired(len(z0), 0.5 if self.symmetric else 1.0, self.symmetric, z0.device), z0, z1)]


CANDIDATES = {
    "all": "every other embedding",
    "both": "the negatives of both views",
    "same": "the negatives of the row's own view",
    "other": "the negatives of the other view",
}


@dataclass(frozen=True, repr=False)
class Joint(Layout):
    """Rows and columns are all embeddings of both views, 2n of them; self pairs are left out.

    Args:
        candidates: what a row is compared with: ``"all"`` other embeddings, its positive among them; or only the
            negatives (other items) of ``"both"`` views, of the row's own, ``"same"``, or of the ``"other"``.

    Raises:
        UsageError: candidates is none of the four.

    >>> import torch
    >>> (block,) = Joint()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape, block.pattern.positives[1].tolist()
    ((6, 6), [3, 4, 5, 0, 1, 2])
    """

    candidates: str = "all"

    def __post_init__(self) -> None:
        if self.candidates not in CANDIDATES:
            raise unknown_name("candidates", self.candidates, CANDIDATES)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (2n, 2n)."""
        z = torch.cat(_two("joint", views))
        return [Block(_all_with_all(len(views[0]), self.candidates, z.device), z, z)]


@remembered
def _beside_prototypes(size: int, columns: int, device: torch.device) -> Pattern:
    items = torch.arange(size, device=device)
    return Pattern(size, items, nobody(columns, items), (items[:0],) * 2, strangers=columns, crowded=True)


@remembered
def _all_with_all(size: int, candidates: str, device: torch.device) -> Pattern:
    places = torch.arange(2 * size, device=device)
    items, view = places % size, places // size
    masks = [Mask((places, places) if candidates == "all" else (items, items))]
    if candidates in ("same", "other"):
        unwanted = 1 - view if candidates == "same" else view
        masks.append(Mask((view, unwanted), kept=(items, items)))
    positives = places, places.roll(size)
    return Pattern(size, items, items, positives, tuple(masks), one_each=True, crowded=candidates == "all")


def _two(layout: str, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    check(len(views) == 2, f"views: the {layout} layout compares 2 views, got {len(views)}.")
    return views[0], views[1]
