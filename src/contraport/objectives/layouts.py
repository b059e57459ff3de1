"""Layouts: which pairs are compared.

A layout turns the views of a batch into blocks. A block is one set of rows, one of columns, what is left out between
them, and where the positives stand.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from contraport.engine import Geometry, Kernel, Mask
from contraport.errors import UsageError, check, unknown_name
from contraport.objectives.equality import Indicator
from contraport.objectives.part import Part


@dataclass(frozen=True, eq=False)
class Block:
    """Rows compared with columns.

    Attributes:
        x: embeddings of the rows, (N, d).
        y: embeddings of the columns, (M, d); the same tensor as x where both are the same embeddings.
        size: how many items the batch has, n.
        row_items: which item of the batch each row shows, (N,).
        column_items: which item each column shows, (M,); -1 where a column shows none.
        positives: the row and the column of every positive pair, two index tensors (k,).
        masks: the pairs left out.
        weight: the factor of this block in the objective, for each direction.
        reciprocal: whether the columns are matched to the rows as well, each direction with its own plan.
        strangers: how many columns, the last ones, show no item of the batch.
    """

    x: Tensor
    y: Tensor
    size: int
    row_items: Tensor
    column_items: Tensor
    positives: tuple[Tensor, Tensor]
    masks: tuple[Mask, ...] = ()
    weight: float = 1.0
    reciprocal: bool = False
    strangers: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return len(self.x), len(self.y)

    @property
    def T(self) -> Block:
        """The same block with rows and columns exchanged."""
        return replace(
            self,
            x=self.y,
            y=self.x,
            row_items=self.column_items,
            column_items=self.row_items,
            positives=self.positives[::-1],
            masks=tuple(mask.T for mask in self.masks),
        )

    @property
    def items(self) -> tuple[Tensor, Tensor]:
        """The items of the rows, (N,), and of the columns, (M,)."""
        return self.row_items, self.column_items

    def spread(self, attribute: Tensor) -> tuple[Tensor, Tensor]:
        """Return an attribute of the items, (n, ...), as that of the rows, (N, ...), and of the columns, (M, ...)."""
        return attribute[self.row_items], attribute[self.column_items]

    def without_duplicates(self, ids: Tensor) -> Block:
        """Return the block without the pairs of different items with equal `ids`, (n,)."""
        check(self.strangers == 0, "ids: the columns of this layout show no items, so none is a duplicate.")
        return replace(self, masks=(*self.masks, Mask(self.spread(ids), kept=self.items)))

    def beside(self, negatives: Tensor, ids: tuple[Tensor, Tensor] | None = None) -> Block:
        """Return this direction of the block with further columns to which nothing is matched.

        Args:
            negatives: embeddings of the further columns, (k, d).
            ids: identities of the items, (n,), and of the further columns, (k,); pairs with equal ones are left out.
        """
        k = len(negatives)
        masks = tuple(mask.beside(k) for mask in self.masks)
        if ids is not None:
            of_rows, of_negatives = ids[0][self.row_items], ids[1]
            unlike = (of_rows.amin() - 1).expand(self.shape[1])
            masks += (Mask((of_rows, torch.cat([unlike, of_negatives]))),)
        return replace(
            self,
            y=torch.cat([self.y, negatives]),
            column_items=torch.cat([self.column_items, _nobody(k, self.column_items)]),
            masks=masks,
            reciprocal=False,
            strangers=self.strangers + k,
        )

    def geometry(self, kernel: Kernel) -> Geometry:
        """Return the compared pairs under a kernel."""
        return Geometry(kernel(self.x, self.y), self.masks)

    def compared(self) -> Indicator:
        """Return the set of compared pairs."""
        return Indicator.allowed(self.masks, self.items)

    def negatives(self) -> Indicator:
        """Return the set of compared pairs that show different items."""
        return self.compared().without(Indicator.equal(self.items))

    @property
    def compares_positives(self) -> bool:
        """Whether positives are among the compared pairs: no mask goes by the items alone."""
        return all(mask.kept is not None or mask.labels[0] is not self.row_items for mask in self.masks)


class Layout(Part, ABC):
    """Turns the views of a batch, tensors (n, d), into blocks of compared pairs."""

    @property
    def shared_columns(self) -> bool:
        """Whether the last view is not of items: any number of columns, the same on every process."""
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
        check(not (self.symmetric and self.shared_columns), "shared_columns: expected symmetric=False with it.")

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (n, n), or (n, k) with shared columns."""
        z0, z1 = _two("cross", views)
        z1 = z1.detach() if self.stop_gradient else z1
        if self.shared_columns:
            items = torch.arange(len(z0), device=z0.device)
            return [Block(z0, z1, len(z0), items, _nobody(len(z1), items), (items[:0],) * 2, strangers=len(z1))]
        return [_pair(z0, z1, 0.5 if self.symmetric else 1.0, self.symmetric)]


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
    >>> block.shape, block.positives[1].tolist()
    ((6, 6), [3, 4, 5, 0, 1, 2])
    """

    candidates: str = "all"

    def __post_init__(self) -> None:
        if self.candidates not in CANDIDATES:
            raise unknown_name("candidates", self.candidates, CANDIDATES)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block, (2n, 2n)."""
        z = torch.cat(_two("joint", views))
        n, places = len(views[0]), torch.arange(len(z), device=z.device)
        items, view = places % n, places // n
        masks = [Mask((places, places) if self.candidates == "all" else (items, items))]
        if self.candidates in ("same", "other"):
            unwanted = 1 - view if self.candidates == "same" else view
            masks.append(Mask((view, unwanted), kept=(items, items)))
        return [Block(z, z, n, items, items, (places, places.roll(n)), tuple(masks))]


@dataclass(frozen=True, repr=False)
class FullGraph(Layout):
    """Every pair of views, each in both directions, summed.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.
    """

    @property
    def takes_several(self) -> bool:
        """Whether it takes any number of views: it does."""
        return True

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return V (V - 1) / 2 blocks, (n, n) each."""
        _several("full graph", views)
        return [_pair(a, b, 1.0, reciprocal=True) for a, b in combinations(views, 2)]


@dataclass(frozen=True, repr=False)
class CoreView(Layout):
    """The first view with every other, each in both directions, summed.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.
    """

    @property
    def takes_several(self) -> bool:
        """Whether it takes any number of views: it does."""
        return True

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return V - 1 blocks, (n, n) each."""
        _several("core view", views)
        return [_pair(views[0], other, 1.0, reciprocal=True) for other in views[1:]]


@dataclass(frozen=True, repr=False)
class Within(Layout):
    """Each view with itself, self pairs left out, averaged over the views; nothing is positive."""

    @property
    def takes_several(self) -> bool:
        """Whether it takes any number of views: it does."""
        return True

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block per view, (n, n) each."""
        items = torch.arange(len(views[0]), device=views[0].device)
        nothing = items[:0]
        mask = Mask((items, items))
        return [Block(z, z, len(z), items, items, (nothing, nothing), (mask,), 1 / len(views)) for z in views]

    def further(self, negatives: Tensor) -> Tensor:
        """Raise `UsageError`: a view is compared with itself."""
        raise UsageError("negatives: this objective compares each view with itself only (Within).")


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


def _pair(z0: Tensor, z1: Tensor, weight: float, reciprocal: bool) -> Block:
    """Return the block that compares two views, item i with item i the positives."""
    items = torch.arange(len(z0), device=z0.device)
    return Block(z0, z1, len(z0), items, items, (items, items), (), weight, reciprocal)


def _nobody(columns: int, like: Tensor) -> Tensor:
    """Return the items of columns that show none."""
    return like.new_full((columns,), -1)


def _two(layout: str, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    check(len(views) == 2, f"views: the {layout} layout compares 2 views, got {len(views)}.")
    return views[0], views[1]


def _several(layout: str, views: Sequence[Tensor]) -> None:
    check(len(views) >= 2, f"views: the {layout} layout compares 2 or more views, got {len(views)}.")


def check_views(views: Sequence[Tensor], *, shared_columns: bool = False) -> None:
    """Raise `UsageError` unless the views are matching (n, d) tensors of floating point numbers, n and d at least 1.

    Args:
        views: the embeddings.
        shared_columns: whether the last view may have another number of rows.
    """
    check(len(views) >= 1, "views: expected embeddings, got none.")
    for k, view in enumerate(views):
        check(isinstance(view, Tensor), f"z{k}: expected a tensor, got {type(view).__name__}.")
        check(view.layout == torch.strided, f"z{k}: expected a dense tensor, got {view.layout}; use to_dense().")
        shared = shared_columns and k == len(views) - 1
        check(
            view.ndim == 2 and view.shape[shared:] == views[0].shape[shared:],
            f"z{k}: expected shape {'(k, d), d that of z0' if shared else '(n, d), the same for all views'}, "
            f"got {[tuple(v.shape) for v in views]}.",
        )
        _check_floating(f"z{k}", view, views[0])
        check(view.numel() > 0, f"z{k}: expected at least one item and one coordinate, got shape {tuple(view.shape)}.")


def check_negatives(negatives: object, ids: object, views: Sequence[Tensor]) -> None:
    """Raise `UsageError` unless the negatives are (k, d) floating point numbers, d that of the views, and ids (k,)."""
    d = views[0].shape[1]
    got = f"shape {tuple(negatives.shape)}" if isinstance(negatives, Tensor) else type(negatives).__name__
    good = isinstance(negatives, Tensor) and negatives.ndim == 2 and negatives.shape[1] == d
    check(good, f"negatives: expected a tensor of shape (k, {d}), got {got}.")
    assert isinstance(negatives, Tensor)
    _check_floating("negatives", negatives, views[0])
    if ids is not None:
        good = isinstance(ids, Tensor) and ids.shape == negatives.shape[:1]
        got = str(tuple(ids.shape)) if isinstance(ids, Tensor) else type(ids).__name__
        check(good, f"negative_ids: expected a tensor with one entry per negative, ({len(negatives)},), got {got}.")


def _check_floating(name: str, value: Tensor, first: Tensor) -> None:
    check(value.is_floating_point(), f"{name}: expected floating point embeddings, got {value.dtype}.")
    check(value.device == first.device, f"{name}: is on {value.device}, but z0 is on {first.device}.")
