"""Layouts, which turn the views of a batch into blocks of pairs.

A block has the embeddings of its rows and columns, and the pattern of their items, masks and positives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from contraport._utils.formatting import NonDefaultsReprMixin
from contraport.distributed import current_processes
from contraport.engine import (
    Geometry,
    Kernel,
    LabelExclusion,
    LogKernel,
    RingLogKernel,
    Shards,
    SimilarityExclusion,
    WriteDetectingCacheEntry,
    cached_until_result_written,
)
from contraport.errors import UsageError, check, check_boolean, check_name
from contraport.objectives.equal_label_pairs import PairSet
from contraport.objectives.inputs import zero_pad_vector_sets
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes

__all__ = [
    "AllViewPairs", "Block", "CoreViewPairs", "Cross", "Joint", "Layout", "LayoutTraits", "PairPattern", "WithinView",
]  # fmt: skip

CachedT = TypeVar("CachedT")
"""Type of the value that `PairPattern.compute_once` caches."""


@dataclass(frozen=True, eq=False)
class PairPattern:
    """Pairs of a block that are compared (not masked), and which of them are positive.

    Attributes:
        num_items: Number of items in the batch, n.
        row_items: Item of each row, (N,).
        column_items: Item of each column, (M,); -1 for columns without an item.
        positives: Row and column of every positive pair, two index tensors (k,).
        masks: Masks that exclude pairs from the comparison.
        block_weight: Weight of the block in the objective, in each direction.
        bidirectional: Whether columns are also compared with rows, as a second direction with its own plan.
        num_extra_columns: Number of columns without an item, such as additional negatives; they are the last ones.
        one_positive_per_row: Whether each row has exactly one positive; the k-th positive pair is that of row k.
        has_no_empty_row_or_column: Whether no row and no column is empty: each has at least one compared pair.
        selected_indices: Indices of the selected rows and columns in the full block, (N,) and (M,); None if all are.
    """

    num_items: int
    row_items: Tensor
    column_items: Tensor
    positives: tuple[Tensor, Tensor]
    masks: tuple[LabelExclusion | SimilarityExclusion, ...] = ()
    block_weight: float = 1.0
    bidirectional: bool = False
    num_extra_columns: int = 0
    one_positive_per_row: bool = False
    has_no_empty_row_or_column: bool = False
    selected_indices: tuple[Tensor, Tensor] | None = None
    _cache: dict[Hashable, WriteDetectingCacheEntry[Any]] = field(default_factory=dict, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns, (N, M)."""
        return self.row_items.shape[0], self.column_items.shape[0]  # len() of a tensor takes three times as long

    @property
    def items(self) -> tuple[Tensor, Tensor]:
        """Index of the item of each row, (N,), and of each column, (M,)."""
        return self.row_items, self.column_items

    def compute_once(self, key: Hashable, function: Callable[[], CachedT]) -> CachedT:
        """Return the value of a function, cached in the pattern under `key`."""
        if torch.compiler.is_compiling():
            return function()
        entry: WriteDetectingCacheEntry[CachedT] | None = self._cache.get(key)
        if entry is None or not entry.is_unmodified:
            with torch.inference_mode(False), torch.no_grad():  # to serve later calls with and without a gradient
                entry = WriteDetectingCacheEntry(function())
            if not entry.is_temporary:
                self._cache[key] = entry
        return entry.value

    @property
    def T(self) -> PairPattern:
        """Transposed pattern, with rows and columns exchanged."""
        return self.compute_once(
            "T",
            lambda: replace(
                self,
                row_items=self.column_items,
                column_items=self.row_items,
                positives=self.positives[::-1],
                masks=tuple(mask.T for mask in self.masks),
                one_positive_per_row=self.one_positive_per_row and self.positives[0] is self.positives[1],
                selected_indices=None if self.selected_indices is None else self.selected_indices[::-1],
            ),
        )

    def with_scaled_weight(self, factor: float) -> PairPattern:
        """Return the pattern with its loss weight multiplied by a factor."""
        if factor == 1:
            return self
        return self.compute_once(("weight", factor), lambda: replace(self, block_weight=factor * self.block_weight))

    def select_rows_and_columns(self, rows: Tensor, columns: Tensor) -> PairPattern:
        """Return the pattern restricted to given row and column indices.

        If both are the same indices they must be the same tensor.
        """
        taken: dict[tuple[int, int], Tensor] = {}

        def take(sides: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            # Identical tensors stay identical: other code recognizes by identity that rows and columns are the same,
            # and that a mask is one of items.
            for side, indices in zip(sides, (rows, columns), strict=True):
                if (id(side), id(indices)) not in taken:
                    taken[id(side), id(indices)] = side[indices]
            return taken[id(sides[0]), id(rows)], taken[id(sides[1]), id(columns)]

        row_items, column_items = take(self.items)
        masks = (
            LabelExclusion(take(mask.labels), None if mask.exception_labels is None else take(mask.exception_labels))
            for mask in self.masks
            if isinstance(mask, LabelExclusion)  # similarity masks are only added after the selection
        )
        places = [
            torch.full((size,), -1, device=indices.device).scatter(
                0, indices, torch.arange(len(indices), device=indices.device)
            )
            for size, indices in zip(self.shape, (rows, columns), strict=True)
        ]
        positives = torch.stack([place[side] for place, side in zip(places, self.positives, strict=True)])
        present = positives[:, (positives >= 0).all(0)]
        return replace(
            self,
            row_items=row_items,
            column_items=column_items,
            positives=(present[0], present[1]),
            masks=tuple(masks),
            one_positive_per_row=False,
            has_no_empty_row_or_column=False,
            selected_indices=(rows, columns),
        )

    def pairs_with_equal(self, attribute: Tensor) -> PairSet:
        """Return the pairs of items that have equal values in `attribute`."""
        rows = attribute[self.row_items]
        same = self.row_items is self.column_items
        return PairSet.from_equal_labels((rows, rows if same else attribute[self.column_items]))

    def mask_duplicates(self, ids: Tensor) -> PairPattern:
        """Exclude pairs of different items that share an id."""
        if self.num_extra_columns > 0:
            raise UsageError("ids: cannot be used with this layout, whose columns are not items.", kind="conflict")
        duplicates = LabelExclusion((ids[self.row_items], ids[self.column_items]), exception_labels=self.items)
        nonempty = self.has_no_empty_row_or_column and self.includes_positives
        return replace(self, masks=(*self.masks, duplicates), has_no_empty_row_or_column=nonempty)

    def append_negative_columns(
        self, num_columns: int, item_and_column_ids: tuple[Tensor, Tensor] | None, only_item_per_column: Tensor | None
    ) -> PairPattern:
        """Return the pattern with k more columns, which are all negatives.

        It supports only the direction from rows to columns. Pairs with equal ids, of the n items and the k columns, are
        excluded. With `only_item_per_column`, (k,), each new column is only compared with that one item.
        """
        # Masks are equalities of labels, in O(N + M) memory: a Boolean matrix would take O(N M), and could not be read
        # within a pass over tiles.
        masks = tuple(mask.append_columns(num_columns) for mask in self.masks)
        if only_item_per_column is not None:
            zeros, no_item = torch.zeros_like(self.row_items), torch.full_like(self.column_items, -1)
            # Label 0 marks all rows and the new columns; pairs of equal label are excluded except with their one item.
            labels = zeros, torch.cat([no_item, torch.zeros_like(only_item_per_column)])
            exceptions = self.row_items, torch.cat([no_item, only_item_per_column])
            masks += (LabelExclusion(labels, exception_labels=exceptions),)
        if item_and_column_ids is not None:
            row_ids, column_ids = item_and_column_ids[0][self.row_items], item_and_column_ids[1]
            unequal = (row_ids.amin() - 1).expand(self.shape[1])
            masks += (LabelExclusion((row_ids, torch.cat([unequal, column_ids]))),)
        return replace(
            self,
            column_items=torch.cat([self.column_items, self.column_items.new_full((num_columns,), -1)]),
            masks=masks,
            bidirectional=False,
            num_extra_columns=self.num_extra_columns + num_columns,
            has_no_empty_row_or_column=False,
        )

    def row_and_column_shards(self, item_counts: tuple[int, ...]) -> tuple[Shards, Shards]:
        """Return how the rows and the columns are divided among processes."""

        def distribute() -> tuple[Shards, Shards]:
            rows = Shards.assign_rows_by_item(self.row_items, item_counts)
            same = self.row_items is self.column_items
            return rows, rows if same else Shards.assign_rows_by_item(self.column_items, item_counts)

        return self.compute_once(("shards", item_counts), distribute)

    def fill_masked(self, matrix: Tensor, value: float) -> Tensor:
        """Return a matrix, (N, M), with excluded pairs replaced by a value."""
        for mask in self.masks:
            matrix = matrix.masked_fill(mask.dense(), value)
        return matrix

    def compared_pairs(self) -> PairSet:
        """Return the set of compared pairs."""
        return self.compute_once("compared", lambda: PairSet.all_pairs_except_equal_labels(self.masks, self.items))

    def different_item_pairs(self) -> PairSet:
        """Return the compared pairs of two different items, which are the negatives."""
        return self.compute_once(
            "different items", lambda: self.compared_pairs().without(PairSet.from_equal_labels(self.items))
        )

    @property
    def includes_positives(self) -> bool:
        """True if positives are among the compared pairs."""
        for mask in self.masks:
            if isinstance(mask, LabelExclusion) and mask.exception_labels is None and mask.labels[0] is self.row_items:
                return False
        return True


@dataclass(frozen=True, eq=False)
class Block:
    """Block of compared pairs, with the embeddings of its rows and columns.

    Attributes:
        pattern: Compared pairs, positives and items of the block.
        x: Embeddings of the rows, (N, d).
        y: Embeddings of the columns, (M, d); the same tensor as x if both are the same embeddings.
        similarities: Similarities of rows and columns, (N, M), if given in place of embeddings; else None.
        ring_item_counts: Number of items of each process in the ring exchange, where x and y have only the rows and
            columns of this process's items and the pattern those of all; else None.
        is_transposed: Whether rows are columns of the layout, so that a kernel that is not symmetric is transposed.
    """

    pattern: PairPattern
    x: Tensor
    y: Tensor
    similarities: Tensor | None = None
    ring_item_counts: tuple[int, ...] | None = None
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and number of columns, (N, M)."""
        return self.pattern.shape

    @property
    def compute_dtype(self) -> torch.dtype:
        """Dtype of computations, float64 for float64 embeddings, else float32."""
        return self.x.dtype if self.x.dtype == torch.float64 else torch.float32

    @property
    def T(self) -> Block:
        """Transposed block, with rows and columns exchanged."""
        similarities = None if self.similarities is None else self.similarities.T
        return Block(self.pattern.T, self.y, self.x, similarities, self.ring_item_counts, not self.is_transposed)

    def select_rows_and_columns(self, rows: Tensor, columns: Tensor) -> Block:
        """Return the block restricted to given row and column indices."""
        x = self.x[rows]
        y = x if self.y is self.x else self.y[columns]
        return replace(self, pattern=self.pattern.select_rows_and_columns(rows, columns), x=x, y=y)

    def without_absent_views(self, matrix: Tensor, argument_name: str) -> Tensor:
        """Return a matrix without the rows and columns of missing views.

        Raises:
            UsageError: the matrix has neither the shape with them nor the shape without.
        """
        selection, shape = self.pattern.selected_indices, tuple(matrix.shape)
        if selection is None or shape == self.shape:
            return matrix
        rows, columns = (side.to(matrix.device) for side in selection)
        good = bool(rows.amax() < shape[0] and columns.amax() < shape[1])
        message = f"{argument_name}: must have the shape of the pairs that are present, {self.shape}, got {shape}."
        check(good, message, "shape")
        return matrix.index_select(0, rows).index_select(1, columns)

    def append_negative_columns(
        self, embeddings: Tensor, item_and_column_ids: tuple[Tensor, Tensor] | None, only_item_per_column: Tensor | None
    ) -> Block:
        """Return the block with k negative columns appended, given their embeddings, (k, d)."""
        pattern = self.pattern.append_negative_columns(len(embeddings), item_and_column_ids, only_item_per_column)
        return replace(self, pattern=pattern, y=torch.cat(zero_pad_vector_sets([self.y, embeddings])))

    def build_geometry(self, kernel: Kernel, temperature: float | Tensor | None = None) -> Geometry:
        """Build the block's log-kernel, with masks of the excluded pairs."""
        if self.ring_item_counts is not None:
            processes, (rows, columns) = current_processes(), self.pattern.row_and_column_shards(self.ring_item_counts)
            own = kernel(self.x, self.y, temperature, processes)
            log_kernel: LogKernel = RingLogKernel(own, rows, columns, processes)
        elif self.similarities is None:
            x, y = (self.y, self.x) if self.is_transposed else (self.x, self.y)
            log_kernel = kernel(x, y, temperature)
            log_kernel = log_kernel.T if self.is_transposed else log_kernel
        else:
            log_kernel = kernel.from_similarities(self.similarities, temperature)
        return Geometry(log_kernel, self.pattern.masks, self.pattern.has_no_empty_row_or_column)


@cached_until_result_written
def build_diagonal_pattern(
    size: int, block_weight: float, bidirectional: bool, device: torch.device, decoupled: bool = False
) -> PairPattern:
    """Build the pattern of pairs between two views, with positives on the diagonal.

    If decoupled, the positives are excluded from the compared pairs.
    """
    items = torch.arange(size, device=device)
    masks, nonempty = ((LabelExclusion((items, items)),), size > 1) if decoupled else ((), True)
    return PairPattern(
        size,
        items,
        items,
        (items, items),
        masks,
        block_weight,
        bidirectional,
        one_positive_per_row=True,
        has_no_empty_row_or_column=nonempty,
    )


class LayoutTraits(NamedTuple):
    """Properties of a layout that hold for any views, such as `stop_gradient`.

    Attributes:
        shared_columns: Whether the columns are not items but prototypes or the like, the same for all rows and
            processes.
        stop_gradient: Whether the columns are detached from the gradient.
        takes_all_views: Whether training passes all views at once, rather than two at a time.
        views_are_positives: Whether the views of an item are positives of each other.
        includes_positives: Whether positives are among the compared pairs.
        compares_items: Whether items are compared with items, rather than coordinates with coordinates.
        requires_features_argument: Whether the compared pairs depend on ``features=`` of the call.
        requires_view_features: Whether features must differ between views: features of whole items change nothing.
        has_core_view: Whether training on several views compares the first (the core view) with each other view only.
    """

    shared_columns: bool = False
    stop_gradient: bool = False
    takes_all_views: bool = False
    views_are_positives: bool = True
    includes_positives: bool = True
    compares_items: bool = True
    requires_features_argument: bool = False
    requires_view_features: bool = False
    has_core_view: bool = False


class BooleanFieldCheckMixin(NonDefaultsReprMixin):
    """Mixin that checks the Boolean fields of the parts of an objective."""

    def __post_init__(self) -> None:
        instance: Any = self
        for option in fields(instance):
            value = getattr(self, option.name)
            if option.type == "bool" and not isinstance(value, bool):
                check_boolean(option.name, value)


@keep_deprecated_attributes(
    arrange="arrange_like_embeddings",
    arrange_blocks="arrange_like_embeddings",
    arrange_item_values="arrange_like_embeddings",
    transform_negatives="pad_negatives_like_views",
    view_sizes="infer_view_sizes",
)
class Layout(BooleanFieldCheckMixin, ABC):
    """Base class of layouts, which turn views into blocks of compared pairs."""

    @property
    def traits(self) -> LayoutTraits:
        """Properties of the layout that hold for any views, such as `stop_gradient`."""
        return LayoutTraits()

    def with_mask_by_features(self, block: Block, item_features: tuple[Tensor, Tensor]) -> Block:
        """Return a block with pairs masked by item features; by default, the same block."""
        return block

    def arrange_like_embeddings(self, *values: Tensor) -> list[Block]:
        """Arrange values of the items, (n, k) per view, as the layout arranges embeddings."""
        return self(*values)

    def infer_view_sizes(self, similarity_shape: tuple[int, int], num_items: int | None) -> tuple[int, ...]:
        """Return each view's number of items from the shape of a similarity matrix.

        Args:
            similarity_shape: shape of the matrix.
            num_items: number of items, if known from other options of the call.

        Raises:
            UsageError: the layout has no single matrix of rows by columns, or the shape does not fit.
        """
        raise UsageError(
            f"similarities: not accepted by {self!r}, which has no single matrix of rows by columns; give embeddings.",
            kind="conflict",
        )

    @abstractmethod
    def __call__(self, *views: Tensor) -> list[Block]:
        """Return the blocks of embedding pairs that the layout compares."""

    def pad_negatives_like_views(self, negatives: Tensor) -> Tensor:
        """Pad additional negatives, (k, d), as the layout pads view embeddings."""
        return negatives


@accept_deprecated_keywords(core="core_view")
@keep_deprecated_attributes(core="core_view")
@dataclass(frozen=True, repr=False)
class Cross(Layout):
    """Layout that compares two views, with positives on the diagonal.

    Args:
        symmetric: average both directions, view 0 to view 1 and back.
        stop_gradient: detach the columns, as BYOL's target branch.
        shared_columns: the columns are not items but prototypes, (k, d), for example: any number of them, none is
            positive, so that the call needs a matrix as target, (n, k). Under `torch.distributed` every process has its
            own rows, of embeddings and target, and the same columns.
        decoupled: exclude the positives from the compared pairs.
        core_view: when training on more than two views, compare the first with each other view, rather than all pairs.

    Raises:
        UsageError: an option is not a Boolean, or shared columns are combined with ``symmetric`` or ``decoupled``.

    >>> import torch
    >>> (block,) = Cross()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape
    (3, 3)
    """

    symmetric: bool = True
    stop_gradient: bool = False
    shared_columns: bool = False
    decoupled: bool = False
    core_view: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shared_columns:
            check(not self.symmetric, "shared_columns: requires symmetric=False.", "conflict")
            check(not self.decoupled, "decoupled: cannot be combined with shared_columns.", "conflict")

    @property
    def traits(self) -> LayoutTraits:
        return LayoutTraits(
            shared_columns=self.shared_columns,
            stop_gradient=self.stop_gradient,
            includes_positives=not self.decoupled,
            has_core_view=self.core_view,
        )

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block of compared pairs, (n, n), or (n, k) with k prototypes as columns."""
        check(len(views) == 2, f"views: must be 2 for the cross layout, got {len(views)}.")
        z0, z1 = views
        z1 = z1.detach() if self.stop_gradient else z1
        if self.shared_columns:
            items = torch.arange(z0.shape[0], device=z0.device)
            no_items, no_positives = items.new_full((z1.shape[0],), -1), (items[:0], items[:0])
            pattern = PairPattern(len(items), items, no_items, no_positives, num_extra_columns=len(no_items))
            return [Block(replace(pattern, has_no_empty_row_or_column=True), z0, z1)]
        weight = 0.5 if self.symmetric else 1.0
        return [Block(build_diagonal_pattern(z0.shape[0], weight, self.symmetric, z0.device, self.decoupled), z0, z1)]

    def infer_view_sizes(self, similarity_shape: tuple[int, int], num_items: int | None) -> tuple[int, ...]:
        return similarity_shape


@accept_deprecated_keywords(together="compares_all_views_at_once", all_views="compares_all_views_at_once")
@keep_deprecated_attributes(together="compares_all_views_at_once", all_views="compares_all_views_at_once")
@dataclass(frozen=True, repr=False)
class Joint(Layout):
    """Layout that compares all embeddings of all views, without self pairs.

    Two views of n items give a block (2n, 2n). With two views each row has one positive; with more, all other views of
    its item; with one view, none.

    Args:
        candidates: compared with each row: ``"all"`` other embeddings, positives included; or only negatives (other
            items) of ``"both"`` views (of all views), of the row's own view, ``"same"``, or of the ``"other"`` view.
        compares_all_views_at_once: training compares all views at once, rather than two at a time.

    Raises:
        UsageError: candidates is unknown, or compares_all_views_at_once is not a Boolean.

    >>> import torch
    >>> (block,) = Joint()(torch.zeros(3, 2), torch.zeros(3, 2))
    >>> block.shape, block.pattern.positives[1].tolist()
    ((6, 6), [3, 4, 5, 0, 1, 2])
    """

    candidates: Literal["all", "both", "same", "other"] = "all"
    compares_all_views_at_once: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name("candidates", self.candidates, ("all", "both", "same", "other"))

    @property
    def traits(self) -> LayoutTraits:
        includes_positives = self.candidates == "all"
        return LayoutTraits(takes_all_views=self.compares_all_views_at_once, includes_positives=includes_positives)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Concatenate the views' rows, and return the block of all pairs of rows, (N, N)."""
        z = torch.cat(views if views[0].ndim == 2 else zero_pad_vector_sets(views))
        return [Block(_build_joint_pattern(views[0].shape[0], len(views), self.candidates, z.device), z, z)]

    def infer_view_sizes(self, similarity_shape: tuple[int, int], num_items: int | None) -> tuple[int, ...]:
        """Return each view's number of items, assuming two views if `num_items` is None."""
        rows, columns = similarity_shape
        size = rows // 2 if num_items is None else num_items
        good = rows == columns and size > 0 and rows % size == 0
        of = "two views" if num_items is None else f"{num_items} items"
        check(
            good,
            f"similarities: must hold all embeddings of {of} by all of them, got shape {similarity_shape}.",
            "shape",
        )
        return (size,) * (rows // size)


@cached_until_result_written
def _build_joint_pattern(size: int, views: int, candidates: str, device: torch.device) -> PairPattern:
    """Build the compared pairs and positives among the embeddings of all views."""
    places = torch.arange(views * size, device=device)
    items, view = places % size, places // size
    masks = [LabelExclusion((places, places) if candidates == "all" else (items, items))]
    if candidates == "same":
        masks.append(LabelExclusion((torch.zeros_like(view),) * 2, exception_labels=(view, view)))
    elif candidates == "other":
        masks.append(LabelExclusion((view, view)))
    # A shift by whole views pairs every embedding with another view of its item.
    others = [places.roll(-shift * size) for shift in range(1, views)]
    positives = places.repeat(len(others)), torch.cat(others) if others else places[:0]
    if views == 2:
        positives = places, others[0]  # without a copy of `places`: the k-th positive is that of row k
    crowded = len(places) > 1 if candidates == "all" else size > 1 and (candidates != "other" or views > 1)
    return PairPattern(
        size, items, items, positives, tuple(masks), one_positive_per_row=views == 2, has_no_empty_row_or_column=crowded
    )


def _build_view_pair_blocks(layout: Layout, views: Sequence[Tensor], pairs: Iterable[Sequence[Tensor]]) -> list[Block]:
    """Return one block of compared embeddings for each pair of views."""
    check(len(views) >= 2, f"views: must be 2 or more for {layout!r}, got {len(views)}.")
    pattern = build_diagonal_pattern(len(views[0]), 1.0, True, views[0].device)
    return [Block(pattern, one, other) for one, other in pairs]


@dataclass(frozen=True, repr=False)
class AllViewPairs(Layout):
    """Layout that compares all pairs of V views (CMC, full graph).

    There are V (V - 1) / 2 blocks, (n, n) each and in both directions, whose losses are added.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.

    >>> import torch, contraport as cp
    >>> len(cp.AllViewPairs()(*torch.zeros(4, 3, 2)))
    6
    """

    traits = LayoutTraits(takes_all_views=True)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block of compared pairs, (n, n), for each unordered pair of views."""
        return _build_view_pair_blocks(self, views, combinations(views, 2))


@dataclass(frozen=True, repr=False)
class CoreViewPairs(Layout):
    """Layout that compares the first view with all others (CMC, core view).

    V views give V - 1 blocks, (n, n) each and in both directions, whose losses are added.

    Source: Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.3.

    >>> import torch, contraport as cp
    >>> len(cp.CoreViewPairs()(*torch.zeros(4, 3, 2)))
    3
    """

    traits = LayoutTraits(takes_all_views=True)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block of compared pairs, (n, n), for the first view and each other view."""
        return _build_view_pair_blocks(self, views, ((views[0], other) for other in views[1:]))


@accept_deprecated_keywords(summed="sum_over_views")
@keep_deprecated_attributes(summed="sum_over_views")
@dataclass(frozen=True, repr=False)
class WithinView(Layout):
    """Layout that compares the items of each view with each other.

    Self pairs are positives, but are not compared.

    Args:
        sum_over_views: sum over the views rather than average.

    Raises:
        UsageError: sum_over_views is not a Boolean; in the call, additional columns (``negatives=``).

    >>> import torch, contraport as cp
    >>> [block.shape for block in cp.WithinView()(torch.zeros(3, 2), torch.zeros(3, 2))]
    [(3, 3), (3, 3)]
    """

    sum_over_views: bool = False
    traits = LayoutTraits(takes_all_views=True, views_are_positives=False, includes_positives=False)

    def __call__(self, *views: Tensor) -> list[Block]:
        """Return one block per view, (n, n), which compares its items with each other."""
        weight = 1.0 if self.sum_over_views else 1 / len(views)
        pattern = build_diagonal_pattern(len(views[0]), weight, False, views[0].device, True)
        return [Block(pattern, z, z) for z in views]

    def pad_negatives_like_views(self, negatives: Tensor) -> NoReturn:
        message = "negatives: not accepted by WithinView, which compares each view with itself."
        raise UsageError(message, kind="conflict")
