"""Layouts: which pairs are compared. A layout makes blocks of compared pairs of the views of a batch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from contraport.engine import CacheEntry, Geometry, Kernel, LabelMask, SimilarityMask, cached, normalize
from contraport.errors import UsageError, check, check_integer, is_number, unknown_name_error
from contraport.objectives.pair_masks import PairIndicator
from contraport.objectives.repr_mixin import ReprMixin

__all__ = [
    "AllViewPairs",
    "Block",
    "Coordinates",
    "CoreViewPairs",
    "Cross",
    "GuidedNegatives",
    "Joint",
    "Layout",
    "LayoutTraits",
    "LeadingCoordinates",
    "PairPattern",
    "WithinView",
]

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class PairPattern:
    """All of a block that does not depend on embeddings: which pairs are compared, and where the positives stand.

    Attributes:
        size: how many items the batch has, n.
        row_items: which item of the batch each row shows, (N,).
        column_items: which item each column shows, (M,); -1 where a column shows none.
        positives: the row and the column of every positive pair, two index tensors (k,).
        masks: the pairs left out.
        weight: the factor of the block in the objective, for each direction.
        reciprocal: whether the columns are matched to the rows as well, each direction with its own plan.
        strangers: how many columns, the last ones, show no item of the batch.
        one_positive_per_row: whether the k-th positive is that of row k, and its only one.
        crowded: whether something of every row and column is compared.
        chosen: which rows and columns of the layout these are, (N,) and (M,), where some are absent.
    """

    size: int
    row_items: Tensor
    column_items: Tensor
    positives: tuple[Tensor, Tensor]
    masks: tuple[LabelMask | SimilarityMask, ...] = ()
    weight: float = 1.0
    reciprocal: bool = False
    strangers: int = 0
    one_positive_per_row: bool = False
    no_empty_rows: bool = False
    chosen: tuple[Tensor, Tensor] | None = None
    _kept: dict[Hashable, CacheEntry[Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.row_items.shape[0], self.column_items.shape[0]  # len() of a tensor takes three times as long

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return what a function makes, made at its first call; it must follow from the pattern and the key alone."""
        if torch.compiler.is_compiling():
            return make()
        entry: CacheEntry[Value] | None = self._kept.get(key)
        if entry is None or not entry.is_unmodified:
            with torch.inference_mode(False), torch.no_grad():
                self._kept[key] = entry = CacheEntry(make())
        return entry.value

    @property
    def T(self) -> PairPattern:
        """The same pattern with rows and columns exchanged."""
        return self.once("T", self._transposed)

    def _transposed(self) -> PairPattern:
        return replace(
            self,
            row_items=self.column_items,
            column_items=self.row_items,
            positives=self.positives[::-1],
            masks=tuple(mask.T for mask in self.masks),
            one_positive_per_row=self.one_positive_per_row and self.positives[0] is self.positives[1],
            chosen=None if self.chosen is None else self.chosen[::-1],
        )

    def only(self, rows: Tensor, columns: Tensor) -> PairPattern:
        """Return the pattern of some rows and columns, index tensors (N',) and (M',), one tensor where both are."""
        taken: dict[tuple[int, int], Tensor] = {}

        def take(sides: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            # What is one tensor stays one: so it is known that rows and columns are the same, and that a mask goes by
            # the items.
            for side, where in zip(sides, (rows, columns), strict=True):
                if (id(side), id(where)) not in taken:
                    taken[id(side), id(where)] = side[where]
            return taken[id(sides[0]), id(rows)], taken[id(sides[1]), id(columns)]

        row_items, column_items = take(self.items)
        masks = (
            LabelMask(take(mask.labels), None if mask.exceptions is None else take(mask.exceptions))
            for mask in self.masks
            if isinstance(mask, LabelMask)  # all are: what depends on features comes once it is known what is there
        )
        places = [
            torch.full((size,), -1, device=where.device).scatter(
                0, where, torch.arange(len(where), device=where.device)
            )
            for size, where in zip(self.shape, (rows, columns), strict=True)
        ]
        positives = torch.stack([place[side] for place, side in zip(places, self.positives, strict=True)])
        there = positives[:, (positives >= 0).all(0)]
        return replace(
            self,
            row_items=row_items,
            column_items=column_items,
            positives=(there[0], there[1]),
            masks=tuple(masks),
            one_positive_per_row=False,
            no_empty_rows=False,
            chosen=(rows, columns),
        )

    @property
    def items(self) -> tuple[Tensor, Tensor]:
        """The items of the rows, (N,), and of the columns, (M,)."""
        return self.row_items, self.column_items

    def equal(self, attribute: Tensor) -> PairIndicator:
        """Return the set of pairs of items that have an equal attribute, (n,) integers."""
        rows = attribute[self.row_items]
        same = self.row_items is self.column_items
        return PairIndicator.equal((rows, rows if same else attribute[self.column_items]))

    def spread(self, attribute: Tensor) -> tuple[Tensor, Tensor]:
        """Return an attribute of the items, (n, ...), as that of the rows, (N, ...), and of the columns, (M, ...)."""
        return attribute[self.row_items], attribute[self.column_items]

    def without_duplicates(self, ids: Tensor) -> PairPattern:
        """Return the pattern without the pairs of different items with equal `ids`, (n,)."""
        if self.strangers > 0:
            raise UsageError("ids: the columns of this layout show no items, so none is a duplicate.")
        duplicates = LabelMask(self.spread(ids), exceptions=self.items)
        return replace(
            self, masks=(*self.masks, duplicates), no_empty_rows=self.no_empty_rows and self.compares_positives
        )

    def beside(
        self, columns: int, ids: tuple[Tensor, Tensor] | None = None, owners: Tensor | None = None
    ) -> PairPattern:
        """Return one direction of the pattern with further columns to which nothing is matched.

        Args:
            columns: how many, k.
            ids: identities of the items, (n,), and of the further columns, (k,); pairs with equal ones are left out.
            owners: with which item alone each is compared, (k,); None is with all.
        """
        masks = tuple(mask.append_columns(columns) for mask in self.masks)
        if owners is not None:
            everyone, of_batch = torch.zeros_like(self.row_items), torch.full_like(self.column_items, -1)
            of_others = everyone, torch.cat([of_batch, torch.zeros_like(owners)])
            masks += (LabelMask(of_others, exceptions=(self.row_items, torch.cat([of_batch, owners]))),)
        if ids is not None:
            of_rows, of_negatives = ids[0][self.row_items], ids[1]
            unlike = (of_rows.amin() - 1).expand(self.shape[1])
            masks += (LabelMask((of_rows, torch.cat([unlike, of_negatives]))),)
        return replace(
            self,
            column_items=torch.cat([self.column_items, nobody(columns, self.column_items)]),
            masks=masks,
            reciprocal=False,
            strangers=self.strangers + columns,
            no_empty_rows=False,
        )

    def masked(self, matrix: Tensor, value: float) -> Tensor:
        """Return a matrix, (N, M), with a value in the place of the pairs that are left out."""
        for mask in self.masks:
            matrix = matrix.masked_fill(mask.dense(), value)
        return matrix

    def compared(self) -> PairIndicator:
        """Return the set of compared pairs."""
        return self.once("compared", lambda: PairIndicator.allowed(self.masks, self.items))

    def negatives(self) -> PairIndicator:
        """Return the set of compared pairs that show different items."""
        return self.once("negatives", lambda: self.compared().without(PairIndicator.equal(self.items)))

    @property
    def compares_positives(self) -> bool:
        """True if positives are compared, so that no mask depends on the items alone."""
        for mask in self.masks:
            if isinstance(mask, LabelMask) and mask.exceptions is None and mask.labels[0] is self.row_items:
                return False
        return True


@dataclass(frozen=True, eq=False)
class Block:
    """Rows compared with columns.

    Attributes:
        pattern: which pairs are compared.
        x: embeddings of the rows, (N, d).
        y: embeddings of the columns, (M, d); the same tensor as x where both are the same embeddings.
        similarities: of the rows with the columns, (N, M), where they are given and the embeddings are not.
    """

    pattern: PairPattern
    x: Tensor
    y: Tensor
    similarities: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.pattern.shape

    @property
    def precision(self) -> torch.dtype:
        """The precision of what is computed of it: that of the embeddings, single at least."""
        return self.x.dtype if self.x.dtype == torch.float64 else torch.float32

    @property
    def T(self) -> Block:
        """The same block with rows and columns exchanged."""
        return Block(self.pattern.T, self.y, self.x, None if self.similarities is None else self.similarities.T)

    def only(self, rows: Tensor, columns: Tensor) -> Block:
        """Return the block of some rows and columns, before it has similarities; see `PairPattern.only`."""
        x = self.x[rows]
        return Block(self.pattern.only(rows, columns), x, x if self.y is self.x else self.y[columns])

    def beside(
        self, negatives: Tensor, ids: tuple[Tensor, Tensor] | None = None, owners: Tensor | None = None
    ) -> Block:
        """Return this direction of the block with further columns, (k, d); see `PairPattern.beside`."""
        return Block(self.pattern.beside(len(negatives), ids, owners), self.x, torch.cat([self.y, negatives]))

    def geometry(self, kernel: Kernel, temperature: float | Tensor | None = None) -> Geometry:
        """Return the compared pairs under a kernel, at its own temperature unless another is given."""
        if self.similarities is None:
            log_kernel = kernel(self.x, self.y, temperature)
        else:
            log_kernel = kernel.from_similarities(self.similarities, temperature)
        return Geometry(log_kernel, self.pattern.masks, self.pattern.no_empty_rows)


@cached
def build_pair_pattern(
    size: int, weight: float, reciprocal: bool, device: torch.device, decoupled: bool = False
) -> PairPattern:
    """Return the pattern that compares two views of some items, item i with item i the positives.

    Decoupled, these are left out of what is compared.
    """
    items = torch.arange(size, device=device)
    masks, no_empty_rows = ((LabelMask((items, items)),), size > 1) if decoupled else ((), True)
    return PairPattern(
        size,
        items,
        items,
        (items, items),
        masks,
        weight,
        reciprocal,
        one_positive_per_row=True,
        no_empty_rows=no_empty_rows,
    )


def nobody(columns: int, like: Tensor) -> Tensor:
    """Return the items of columns that show none."""
    return like.new_full((columns,), -1)


class LayoutTraits(NamedTuple):
    """Properties of a layout that do not depend on its input.

    Attributes:
        shared_columns: whether the last view is not of items: any number of columns, the same on every process.
        stop_gradient: whether the columns are held fixed.
        multi_view: whether a training calls it on all views at once, rather than on two at a time.
        views_are_positives: whether it takes the views of an item for positives of one another.
        compares_positives: whether a row's positives are among what it is compared with.
        compares_items: whether rows and columns show items, of which something may be known.
        requires_features: whether the call must bring ``features=``, which select the compared pairs of a direction.
        requires_view_features: whether it is so by those of each view alone: those of whole items change nothing.
        core: whether a training on more than two views calls it on the pairs that the first view is in alone.
    """

    shared_columns: bool = False
    stop_gradient: bool = False
    multi_view: bool = False
    views_are_positives: bool = True
    compares_positives: bool = True
    compares_items: bool = True
    requires_features: bool = False
    requires_view_features: bool = False
    core: bool = False


class Layout(ReprMixin, ABC):
    """Turns the views of a batch, tensors (n, d), into blocks of compared pairs."""

    @property
    def traits(self) -> LayoutTraits:
        """Properties that do not depend on the input."""
        return LayoutTraits()

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
    def traits(self) -> LayoutTraits:
        """Properties that do not depend on the input."""
        return LayoutTraits(
            self.shared_columns,
            stop_gradient=self.stop_gradient,
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
        return [Block(build_pair_pattern(z0.shape[0], weight, self.symmetric, z0.device, self.decoupled), z0, z1)]

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
            raise unknown_name_error("candidates", self.candidates, CANDIDATES)
        check(isinstance(self.together, bool), f"together: expected True or False, got {self.together!r}.")

    @property
    def traits(self) -> LayoutTraits:
        """Properties that do not depend on the input."""
        return LayoutTraits(multi_view=self.together, compares_positives=self.candidates == "all")

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


@cached
def _beside_prototypes(size: int, columns: int, device: torch.device) -> PairPattern:
    items = torch.arange(size, device=device)
    return PairPattern(size, items, nobody(columns, items), (items[:0],) * 2, strangers=columns, no_empty_rows=True)


@cached
def _all_with_all(size: int, views: int, candidates: str, device: torch.device) -> PairPattern:
    places = torch.arange(views * size, device=device)
    items, view = places % size, places // size
    masks = [LabelMask((places, places) if candidates == "all" else (items, items))]
    if candidates == "same":
        masks.append(LabelMask((torch.zeros_like(view),) * 2, exceptions=(view, view)))
    elif candidates == "other":
        masks.append(LabelMask((view, view)))
    others = [places.roll(-turn * size) for turn in range(1, views)]
    positives = places.repeat(len(others)), torch.cat(others) if others else places[:0]
    if views == 2:
        positives = places, others[0]  # the very rows: one each
    no_empty_rows = len(places) > 1 if candidates == "all" else size > 1 and (candidates != "other" or views > 1)
    return PairPattern(
        size, items, items, positives, tuple(masks), one_positive_per_row=views == 2, no_empty_rows=no_empty_rows
    )


def _two(layout: str, views: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if len(views) != 2:
        raise UsageError(f"views: the {layout} layout compares 2 views, got {len(views)}.")
    return views[0], views[1]


class ViewGraph(Layout):
    """Some pairs of views, each in both directions, summed. A subclass says which pairs."""

    @abstractmethod
    def edges(self, views: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the pairs of views that are compared."""

    @property
    def traits(self) -> LayoutTraits:
        """Properties: takes any number of views."""
        return LayoutTraits(multi_view=True)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return a block for each pair of views, (n, n)."""
        check(len(views) >= 2, f"views: {self!r} compares 2 or more views, got {len(views)}.")
        pattern = build_pair_pattern(len(views[0]), 1.0, True, views[0].device)
        return [Block(pattern, one, other) for one, other in self.edges(views)]


@dataclass(frozen=True, repr=False)
class AllViewPairs(ViewGraph):
    """Every pair of views, each in both directions, summed: V (V - 1) / 2 blocks, (n, n) each.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.

    >>> import torch, contraport as cp
    >>> len(cp.AllViewPairs()(*torch.zeros(4, 3, 2)))
    6
    """

    def edges(self, views: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return all pairs."""
        return list(combinations(views, 2))


@dataclass(frozen=True, repr=False)
class CoreViewPairs(ViewGraph):
    """The first view with every other, each in both directions, summed: V - 1 blocks, (n, n) each.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.

    >>> import torch, contraport as cp
    >>> len(cp.CoreViewPairs()(*torch.zeros(4, 3, 2)))
    3
    """

    def edges(self, views: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return the first view beside each other one."""
        return [(views[0], other) for other in views[1:]]


@dataclass(frozen=True, repr=False)
class WithinView(Layout):
    """Each view with itself, averaged over the views; a self pair is positive, and kept out of the denominators.

    Args:
        summed: add the views up rather than average them.

    Raises:
        UsageError: in the call, further columns (``negatives=``): a view is compared with itself.

    >>> import torch, contraport as cp
    >>> [block.shape for block in cp.WithinView()(torch.zeros(3, 2), torch.zeros(3, 2))]
    [(3, 3), (3, 3)]
    """

    summed: bool = False

    @property
    def traits(self) -> LayoutTraits:
        """Properties: takes any number of views and compares none with another."""
        return LayoutTraits(multi_view=True, views_are_positives=False, compares_positives=False)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block per view, (n, n) each."""
        weight = 1.0 if self.summed else 1 / len(views)
        pattern = _each_with_itself(len(views[0]), weight, views[0].device)
        return [Block(pattern, z, z) for z in views]

    def further(self, negatives: Tensor) -> Tensor:
        """Raise `UsageError`: a view is compared with itself."""
        raise UsageError("negatives: this objective compares each view with itself only (Within).")


@cached
def _each_with_itself(size: int, weight: float, device: torch.device) -> PairPattern:
    items = torch.arange(size, device=device)
    masks = (LabelMask((items, items)),)
    return PairPattern(
        size, items, items, (items, items), masks, weight, one_positive_per_row=True, no_empty_rows=size > 1
    )


class LayoutWrapper(Layout):
    """A layout over another one, in whose place it stands; what it does not change is the other's.

    Attributes:
        layout: the other one.
    """

    layout: Layout

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the other layout's blocks."""
        return self.layout(*views)

    @property
    def traits(self) -> LayoutTraits:
        """Properties of the wrapped layout."""
        return self.layout.traits

    def guide(self, block: Block, features: tuple[Tensor, Tensor]) -> Block:
        """Return one direction of a block as the other layout has it under features."""
        return self.layout.guide(block, features)

    def further(self, negatives: Tensor) -> Tensor:
        """Return what the other layout compares of further columns."""
        return self.layout.further(negatives)


@dataclass(frozen=True, repr=False)
class LeadingCoordinates(LayoutWrapper):
    """Another layout over the first coordinates of each embedding only.

    Args:
        dimensions: how many coordinates, at least 1.
        layout: the layout.

    Raises:
        UsageError: dimensions is not positive or, in the call, larger than the embeddings have.

    >>> import torch, contraport as cp
    >>> (block,) = cp.LeadingCoordinates(2, cp.Cross())(torch.zeros(3, 5), torch.zeros(3, 5))
    >>> block.x.shape
    torch.Size([3, 2])
    """

    dimensions: int
    layout: Layout

    def __post_init__(self) -> None:
        check_integer("dimensions", self.dimensions)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the other layout's blocks."""
        d = views[0].shape[1]
        check(self.dimensions <= d, f"dimensions: expected at most {d}, the embeddings' size, got {self.dimensions}.")
        return self.layout(*(z[:, : self.dimensions] for z in views))

    def further(self, negatives: Tensor) -> Tensor:
        """Return the first coordinates of further columns, as the other layout compares them."""
        return self.layout.further(negatives[:, : self.dimensions])


@dataclass(frozen=True, repr=False)
class GuidedNegatives(LayoutWrapper):
    """Another layout, less the pairs that a teacher finds more alike than the row and its positive.

    The call needs ``features=`` of the teacher. The pair (i, j) is left out where cos(t_i, t_j) > cos(t_i, t_i+) -
    margin, the row's positives never; of several positives, the one that the teacher finds least alike. Further columns
    (``negatives=``) have no features and stay. It is judged within a tile, in O((N + M) k) memory.

    Args:
        layout: the layout.
        margin: in units of the cosine.

    Raises:
        UsageError: the margin is not a finite number; the layout's columns show no items.

    Source: Solatorio (2024), GISTEmbed: guided in-sample selection of training negatives, section 3.

    >>> import torch, contraport as cp
    >>> layout = cp.GuidedNegatives(cp.Cross(), 0.5)
    >>> loss = cp.Objective(layout, cp.Gibbs("cosine", 1.0), cp.Rows(), cp.Pairs(), cp.KL())
    >>> loss.plan(torch.eye(3), torch.eye(3), features=torch.tensor([[1.0, 0], [1, 0.1], [0, 1]]))
    tensor([[0.2437, 0.0000, 0.0896],
            [0.0000, 0.2437, 0.0896],
            [0.0706, 0.0706, 0.1920]])
    """

    layout: Layout
    margin: float = 0.0

    def __post_init__(self) -> None:
        good = is_number(self.margin) and math.isfinite(self.margin)
        check(good, f"margin: expected a finite number, got {self.margin!r}.")
        traits = self.layout.traits
        check(traits.compares_items and not traits.shared_columns, "layout: expected columns that show items.")

    @property
    def traits(self) -> LayoutTraits:
        """Properties of the wrapped layout, which then requires features.

        Where those of an item are the same in all views, as a teacher's of items are, nothing is more alike than these.
        """
        return self.layout.traits._replace(requires_features=True, requires_view_features=self.margin <= 0)

    def guide(self, block: Block, features: tuple[Tensor, Tensor]) -> Block:
        """Return one direction of a block without the pairs that are too alike."""
        block = super().guide(block, features)
        pattern = block.pattern
        x = normalize(features[0])
        y = x if features[0] is features[1] else normalize(features[1])
        rows, columns = pattern.positives
        alike = torch.linalg.vecdot(x[rows], y[columns])
        limits = x.new_full((len(x),), torch.inf).scatter_reduce(0, rows, alike, "amin") - self.margin
        mask = SimilarityMask((x, y), (limits, x.new_zeros(len(y))), pattern.items)
        return replace(block, pattern=replace(pattern, masks=(*pattern.masks, mask), no_empty_rows=False))


@dataclass(frozen=True, repr=False)
class Coordinates(LayoutWrapper):
    """Another layout over coordinates: what it takes for embeddings are the coordinates, each a vector over the batch.

    Of views (n, d) it compares d vectors of n numbers each, so that inner products are covariances, and cosines
    correlations. Nothing is known of a coordinate: the call takes no ``ids``, ``weights``, ``present`` or
    ``negatives``.

    Args:
        layout: the layout.
        centred: take off each coordinate's mean and divide by the root of n - 1: inner products are then unbiased
            covariances; else divide by the root of n.
        summed: add up what the coordinates are worth rather than average it.

    Raises:
        UsageError: in the call, one item whose coordinates are to be centred.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Coordinates(Cross())(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape
    (2, 2)
    """

    layout: Layout
    centred: bool = True
    summed: bool = False

    def __post_init__(self) -> None:
        for name in ("centred", "summed"):
            value = getattr(self, name)
            check(isinstance(value, bool), f"{name}: expected True or False, got {value!r}.")

    @property
    def traits(self) -> LayoutTraits:
        """Properties of the wrapped layout, whose rows and columns are then no items."""
        return self.layout.traits._replace(compares_items=False)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the other layout's blocks."""
        n, d = views[0].shape
        check(n > 1 or not self.centred, "z0: covariances need at least 2 items, got 1.")
        wide = [z.to(torch.promote_types(z.dtype, torch.float32)) for z in views]
        scaled = [_centred(z) / (n - 1) ** 0.5 if self.centred else z / n**0.5 for z in wide]
        blocks = self.layout(*(z.T for z in scaled))
        return [replace(block, pattern=_times(block.pattern, d)) for block in blocks] if self.summed else blocks

    def further(self, negatives: Tensor) -> Tensor:
        """Raise `UsageError`: coordinates have no negatives."""
        raise UsageError("negatives: this objective compares coordinates, not items (Coordinates).")


def _centred(z: Tensor) -> Tensor:
    """Return each coordinate less its mean; 0, without gradient, where it varies by no more than rounding does."""
    centred = z - z.mean(0)
    least = 8 * torch.finfo(z.dtype).eps * z.detach().abs().amax(0)
    return torch.where(centred.detach().abs().amax(0) <= least, 0, centred)


def _times(pattern: PairPattern, factor: int) -> PairPattern:
    return pattern.once(("times", factor), lambda: replace(pattern, weight=factor * pattern.weight))
