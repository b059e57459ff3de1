"""Layouts of one block: a view with another, or all views with all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contraport.engine import Mask, remembered
from contraport.errors import UsageError, check, unknown_name
from contraport.objectives.layouts.block import Block, Pattern, nobody, pattern_of_pairs
from contraport.objectives.layouts.layout import Layout, Traits


@dataclass(frozen=True, repr=False)
class Cross(Layout):
    """The rows are one view, the columns the other, the positives the diagonal.

    Args:
        symmetric: average both directions, view 0 to view 1 and back.
        stop_gradient: hold the columns fixed, as the target branch of BYOL is.
        shared_columns: the columns show no items but are prototypes, (k, d), say: their number is free, nothing is
            positive, so that the call needs a matrix as its target, (n, k), and under `torch.distributed` every process
            brings its own rows, of embeddings and target, and the same columns.
        decoupled: keep the positives out of the denominators: a row is compared with other items only.
        core: in a training on more than two views compare the first with every other, rather than every pair of views.

    Raises:
        UsageError: shared columns are to be matched to the rows as well (``symmetric``), or decoupled.

    >>> import torch
    >>> (block,) = Cross()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape
    (3, 3)
    """

    symmetric: bool = True
    stop_gradient: bool = False
    shared_columns: bool = False
    decoupled: bool = False
    core: bool = False

    def __post_init__(self) -> None:
        for name in ("symmetric", "stop_gradient", "shared_columns", "decoupled", "core"):
            value = getattr(self, name)
            check(isinstance(value, bool), f"{name}: expected True or False, got {value!r}.")
        check(not (self.symmetric and self.shared_columns), "shared_columns: expected symmetric=False with it.")
        check(not (self.decoupled and self.shared_columns), "decoupled: expected False with shared columns.")

    @property
    def traits(self) -> Traits:
        """What is true of it."""
        return Traits(
            self.shared_columns,
            attracts_to_fixed=self.stop_gradient,
            compares_positives=not self.decoupled,
            core=self.core,
        )

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (n, n), or (n, k) with shared columns."""
        z0, z1 = _two("cross", views)
        z1 = z1.detach() if self.stop_gradient else z1
        if self.shared_columns:
            return [Block(_beside_prototypes(z0.shape[0], z1.shape[0], z0.device), z0, z1)]
        weight = 0.5 if self.symmetric else 1.0
        return [Block(pattern_of_pairs(z0.shape[0], weight, self.symmetric, z0.device, self.decoupled), z0, z1)]

    def sizes(self, similarities: tuple[int, int], items: int | None) -> tuple[int, ...]:
        """Return the rows and the columns."""
        return similarities


CANDIDATES = {
    "all": "every other embedding",
    "both": "the negatives of both views",
    "same": "the negatives of the row's own view",
    "other": "the negatives of the other view",
}


@dataclass(frozen=True, repr=False)
class Joint(Layout):
    """Rows and columns are all embeddings of all views, 2n of two; self pairs are left out.

    With two views each row has one positive, with more all other views of its item, and with one none.

    Args:
        candidates: what a row is compared with: ``"all"`` other embeddings, its positives among them; or only the
            negatives (other items) of ``"both"`` views (all of them), of the row's own, ``"same"``, or of the
            ``"other"``.
        together: a training compares all views at once, rather than two at a time.

    Raises:
        UsageError: candidates is none of the four.

    >>> import torch
    >>> (block,) = Joint()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape, block.pattern.positives[1].tolist()
    ((6, 6), [3, 4, 5, 0, 1, 2])
    """

    candidates: str = "all"
    together: bool = False

    def __post_init__(self) -> None:
        if self.candidates not in CANDIDATES:
            raise unknown_name("candidates", self.candidates, CANDIDATES)
        check(isinstance(self.together, bool), f"together: expected True or False, got {self.together!r}.")

    @property
    def traits(self) -> Traits:
        """What is true of it."""
        return Traits(takes_several=self.together, compares_positives=self.candidates == "all")

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (N, N), N = 2n for two views."""
        z = torch.cat(views)
        return [Block(_all_with_all(views[0].shape[0], len(views), self.candidates, z.device), z, z)]

    def sizes(self, similarities: tuple[int, int], items: int | None) -> tuple[int, ...]:
        """Return the rows of each view: of two, unless it is known of how many items there are how many."""
        rows, columns = similarities
        size = rows // 2 if items is None else items
        good = rows == columns and size > 0 and rows % size == 0
        of = "two views" if items is None else f"{items} items"
        check(good, f"similarities: expected those of all embeddings of {of} with all of them, got {similarities}.")
        return (size,) * (rows // size)


@remembered
def _beside_prototypes(size: int, columns: int, device: torch.device) -> Pattern:
    items = torch.arange(size, device=device)
    return Pattern(size, items, nobody(columns, items), (items[:0],) * 2, strangers=columns, crowded=True)


@remembered
def _all_with_all(size: int, views: int, candidates: str, device: torch.device) -> Pattern:
    places = torch.arange(views * size, device=device)
    items, view = places % size, places // size
    masks = [Mask((places, places) if candidates == "all" else (items, items))]
    if candidates == "same":
        masks.append(Mask((torch.zeros_like(view),) * 2, kept=(view, view)))
    elif candidates == "other":
        masks.append(Mask((view, view)))
    others = [places.roll(-turn * size) for turn in range(1, views)]
    positives = places.repeat(len(others)), torch.cat(others) if others else places[:0]
    if views == 2:
        positives = places, others[0]  # the very rows: one each
    crowded = len(places) > 1 if candidates == "all" else size > 1 and (candidates != "other" or views > 1)
    return Pattern(size, items, items, positives, tuple(masks), one_each=views == 2, crowded=crowded)


def _two(layout: str, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if len(views) != 2:
        raise UsageError(f"views: the {layout} layout compares 2 views, got {len(views)}.")
    return views[0], views[1]
