"""Targets given as a list of pairs, a matrix, or item similarities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from contraport._utils.formatting import format_options
from contraport.distributed import Processes, gather
from contraport.errors import UsageError, check, type_and_shape
from contraport.objectives.inputs import Attributes, CallInputs, check_values, is_integer_tensor, to_numeric_tensor
from contraport.objectives.layouts import Block
from contraport.objectives.targets.target import (
    DenseTargetPlan,
    SparseTargetPlan,
    Target,
    TargetPlan,
    scale_rows_to_uniform_marginal,
)


@dataclass(frozen=True, eq=False, repr=False)
class PairList(Target):
    """Target given as a list of positive pairs, with row masses 1/N.

    A pair is a row of the first view and a row of the second; (i, i) are the two views of item i, which are positive
    only if listed. In layouts that compare all views with each other (`Joint`), all views of the one item are positives
    of all views of the other, both ways. Under `torch.distributed` each process lists the pairs of its own rows.

    Args:
        pairs: (k, 2) integers, or a list of pairs, at least one; duplicates count once.
        shares: relative mass of each pair within its row, (k,); duplicates add up. None is equal shares.

    Raises:
        UsageError: it is not a list of pairs, or the shares are not nonnegative finite numbers, one per pair; in the
            call, a pair contains an index out of range, or one that the layout excludes.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> (PairList([(0, 0), (0, 1), (2, 1)])(block, {}).dense() * 6).round()
    tensor([[1., 1., 0.],
            [0., 0., 0.],
            [0., 2., 0.]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ()

    pairs: Tensor | Sequence[Sequence[int]] = field(repr=False)
    shares: Tensor | Sequence[float] | None = field(default=None, repr=False)
    _transposed: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        pairs = to_numeric_tensor("target", self.pairs)
        good = is_integer_tensor(pairs) and pairs.ndim == 2 and pairs.shape[1] == 2 and len(pairs) > 0
        check(good, f"target: must be a list of pairs of integers, (k, 2), got {type_and_shape(pairs)}.", "pairs")
        if self.shares is not None:
            shares = to_numeric_tensor("shares", self.shares)
            shape = tuple(shares.shape)
            check(shape == (len(pairs),), f"shares: must be one per pair, ({len(pairs)},), got shape {shape}.", "shape")
            check_values("shares", shares, torch.isfinite(shares) & (shares >= 0), "nonnegative finite numbers")

    @property
    def _index_pairs(self) -> Tensor:
        """Return the positive pairs as indices into the two views, (k, 2)."""
        return to_numeric_tensor("target", self.pairs).long()

    @property
    def description_equal_on_all_processes(self) -> str:
        return "PairList" if self.shares is None else "PairList with shares"

    def check_inputs(self, inputs: CallInputs) -> None:
        z, n = inputs.views[0], inputs.num_first_view_items
        sizes = (len(z), len(z)) if n is None else (n, len(z) - n)
        for v, (side, size) in enumerate(zip(self._index_pairs.unbind(1), sizes, strict=True)):
            good = (side >= 0) & (side < size)
            check_values("target", side, good, f"pairs whose rows of z{v} are from 0 to {size - 1}")

    def gather_across_processes(self, processes: Processes, inputs: CallInputs) -> PairList:
        z = inputs.views[0]
        offset = torch.tensor([0, inputs.num_first_view_items or 0], device=z.device) + processes.gather_row_offset(z)
        pairs, shares = processes.gather(self._index_pairs.to(z.device) + offset), self.shares
        if shares is not None:
            shares = processes.gather(to_numeric_tensor("shares", shares).to(z.device))
        return PairList(pairs, shares)

    def __call__(self, block: Block, attributes: Attributes) -> SparseTargetPlan:
        pattern, pairs, same = block.pattern, self._index_pairs, block.x is block.y
        shares = torch.ones(len(pairs)) if self.shares is None else to_numeric_tensor("shares", self.shares)
        shares = shares.to(pairs.device, block.compute_dtype)
        if same:
            others = pairs[:, 0] != pairs[:, 1]
            pairs, shares = torch.cat([pairs, pairs[others].flip(1)]), torch.cat([shares, shares[others]])
        pairs, size = (pairs.flip(1) if self._transposed else pairs), pattern.num_items
        listed, places = torch.unique(pairs[:, 0] * size + pairs[:, 1], return_inverse=True)
        # The sparse matrix holds indices of pairs, not shares: `index_select` of a sparse tensor has no gradient.
        indices, numbers = torch.stack([listed // size, listed % size]), torch.arange(len(listed), device=pairs.device)
        between_items = torch.sparse_coo_tensor(indices, numbers, (size, size), check_invariants=False)
        entries = between_items.index_select(0, pattern.row_items).index_select(1, pattern.column_items).coalesce()
        rows, columns = entries.indices()
        if self.shares is None:
            values = shares.new_ones(len(rows))  # duplicates count once
        else:
            values = shares.new_zeros(len(listed)).index_add(0, places, shares)[entries.values()]
        if same:
            keep = rows != columns
            rows, columns, values = rows[keep], columns[keep], values[keep]
        others = pattern.row_items[rows] != pattern.column_items[columns]
        _check_no_target_mass_is_excluded([mask.gather_entries(rows, columns) & others for mask in pattern.masks])
        totals = values.new_zeros(block.shape[0]).index_add(0, rows, values)[rows]
        normalized = values / (block.shape[0] * totals.masked_fill(totals == 0, 1))
        return SparseTargetPlan(rows, columns, normalized, block.shape)

    def for_transposed_block(self) -> PairList:
        return PairList(self.pairs, self.shares, not self._transposed)


@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Target):
    """Target given as a matrix, which is scaled to total mass 1.

    Args:
        matrix: proportional to the target plan, (N, M) of the layout, nonnegative, dense or `torch.sparse`; it is
            scaled to total mass 1. In the joint layout it is (2n, 2n), view 0 before view 1. Rows and columns of absent
            views are ignored.

    Raises:
        UsageError: an entry is negative or not finite, all are zero, or, for a block, the shape differs or there is
            mass on a pair that the layout excludes.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Matrix(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))(block, {}).dense()
    tensor([[0.3750, 0.1250],
            [0.1250, 0.3750]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ()
    fills_all_rows: ClassVar[bool] = True  # its total mass is 1 in any case, so that no row needs a weight

    matrix: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        matrix = self.matrix
        good = isinstance(matrix, Tensor) and matrix.ndim == 2 and not (matrix.is_complex() or matrix.is_meta)
        check(good, f"target: must be real numbers with two dimensions, got {type_and_shape(matrix)}.", "shape")
        values = matrix
        if _is_sparse(matrix):
            object.__setattr__(self, "matrix", matrix.to_sparse_coo().coalesce())  # from any sparse layout
            values = self.matrix.values()
        expected = "nonnegative finite numbers that are not all zero"
        check_values("target", values, torch.isfinite(values) & (values >= 0), expected)
        check(bool(values.sum() > 0), f"target: must be {expected}, got zeros.", "zero")

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        matrix = block.without_absent_views(self.matrix, "target").to(block.x.device, block.compute_dtype)
        shape = tuple(matrix.shape)
        good = shape == block.shape
        check(good, f"target: must have the shape of the layout's pairs, {block.shape}, got {shape}.", "shape")
        if _is_sparse(matrix):
            matrix = matrix.coalesce()
            (rows, columns), values = matrix.indices(), matrix.values()
            masks = [mask.gather_entries(rows, columns) & (values > 0) for mask in block.pattern.masks]
            _check_no_target_mass_is_excluded(masks)
            return SparseTargetPlan(rows, columns, _normalize_total_mass(values), block.shape)
        _check_no_target_mass_is_excluded([mask.dense() & (matrix > 0) for mask in block.pattern.masks])
        return DenseTargetPlan(_normalize_total_mass(matrix))

    def for_transposed_block(self) -> Matrix:
        return Matrix(self.matrix.T)

    def with_gathered_rows(self) -> Matrix:
        return Matrix(gather(self.matrix.to_dense() if _is_sparse(self.matrix) else self.matrix))


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityMatrix(Target):
    """Target whose positives are weighted by a similarity matrix of items.

    The matrix is among all items, or between two sets (a coupling). Each row has mass 1/N, divided in proportion to its
    similarities.

    All views of one item are positives of all views of the other; the item's own other view counts by the diagonal.
    Pairs that the layout excludes are excluded, and rows without positives add nothing to the loss. The target of a
    batch is dense; under `torch.distributed` each process gives its own items.

    Args:
        matrix: similarity of item i to item j, (items, items), nonnegative, dense or `torch.sparse`; it need not be
            symmetric, and only entries between items of the batch are read. For a coupling between two sets it is
            (rows, columns).
        items: index of each item of the batch in the matrix, (n,) integers; for a coupling (n, 2), the row that the
            first view shows and the column that the second view shows.

    Raises:
        UsageError: the matrix has a wrong shape or is not numeric; in the call, an item is outside it, there is not one
            index per item, an entry that is read is negative or not finite, or the layout of a coupling also compares
            rows with rows.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> friends = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> SimilarityMatrix(friends, torch.tensor([2, 0]))(block, {}).dense()
    tensor([[0.5000, 0.0000],
            [0.3750, 0.1250]])
    >>> likes = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])  # of two users, three items
    >>> SimilarityMatrix(likes, torch.tensor([[0, 0], [0, 1]]))(block, {}).dense()
    tensor([[0.2500, 0.2500],
            [0.2500, 0.2500]])
    """

    read_attributes: ClassVar[tuple[str, ...]] = ()

    matrix: Tensor = field(repr=False)
    items: Tensor = field(repr=False)
    _transposed: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        matrix, items = self.matrix, self.items
        integers = is_integer_tensor(items) and (items.ndim == 1 or (items.ndim == 2 and items.shape[1] == 2))
        expected = "the index of each item of the batch, (n,) integers, or (n, 2) for a coupling"
        check(integers, f"items: must be {expected}, got {type_and_shape(items)}.")
        good = isinstance(matrix, Tensor) and matrix.ndim == 2
        good = good and (self.couples_two_sets or matrix.shape[0] == matrix.shape[1])
        check(good, f"target: must be a matrix (items, items), got {type_and_shape(matrix)}.", "shape")

    @property
    def couples_two_sets(self) -> bool:
        """True if the matrix couples two sets, not one with itself."""
        return self.items.ndim == 2

    def for_transposed_block(self) -> SimilarityMatrix:
        return replace(self, _transposed=not self._transposed) if self.couples_two_sets else self

    def gather_across_processes(self, processes: Processes, inputs: CallInputs) -> SimilarityMatrix:
        return replace(self, items=processes.gather(self.items))

    def __call__(self, block: Block, attributes: Attributes) -> DenseTargetPlan:
        size = block.pattern.num_items
        good = len(self.items) == size
        check(good, f"items: must be one index per item of the batch, ({size},), got {len(self.items)}.", "shape")
        if self.couples_two_sets and block.x is block.y:
            flags = format_options(objective="info-nce", shared_encoder=False)
            message = "target: known partners of a coupling require an objective that compares rows with columns only. "
            raise UsageError(f"{message}Train with {flags}; the target 'pairs' ignores the partners.", kind="layout")
        rows, columns = self.items.unbind(1) if self.couples_two_sets else (self.items, self.items)
        for indices, total in ((rows, self.matrix.shape[0]), (columns, self.matrix.shape[1])):
            within = (indices >= 0) & (indices < total)
            check_values("items", indices, within, f"from 0 to {total - 1}, indices into the matrix")
        similarities = self._dense_submatrix(*(side.to(self.matrix.device) for side in (rows, columns)))
        similarities = similarities.to(block.x.device, block.compute_dtype)
        good_values = (similarities >= 0) & similarities.isfinite()
        check_values("target", similarities, good_values, "nonnegative finite numbers between the items of the batch")
        similarities = similarities.T if self._transposed else similarities
        between = similarities[block.pattern.row_items][:, block.pattern.column_items]
        return DenseTargetPlan(scale_rows_to_uniform_marginal(block.pattern.fill_masked(between, 0)))

    def _dense_submatrix(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the dense submatrix of some rows and columns."""
        if not _is_sparse(self.matrix):
            return self.matrix[rows][:, columns]
        # Entries are sorted, so that only the rows of the items are read: the work grows with the batch.
        matrix = self.matrix.to_sparse_coo().coalesce()
        (entry_rows, entry_columns), values = matrix.indices(), matrix.values()
        starts, ends = (torch.searchsorted(entry_rows, rows.contiguous(), right=right) for right in (False, True))
        counts = ends - starts
        row = torch.arange(len(rows), device=rows.device).repeat_interleave(counts)
        entry = torch.arange(len(row), device=rows.device) + (ends - counts.cumsum(0))[row]
        distinct, places = columns.unique(return_inverse=True)
        column = torch.searchsorted(distinct, entry_columns[entry]).clamp_max(len(distinct) - 1)
        present = distinct[column] == entry_columns[entry]
        dense: Tensor = values.new_zeros(len(rows), len(distinct))
        dense = dense.index_put((row[present], column[present]), values[entry[present]])
        return dense[:, places]


def _check_no_target_mass_is_excluded(masks_of_excluded_target_pairs: list[Tensor]) -> None:
    """Raise `UsageError` if a pair with target mass is masked out."""
    good = not any(bool(mask.any()) for mask in masks_of_excluded_target_pairs)
    check(good, "target: has mass on excluded pairs (self pairs, or items with equal ids).", "excluded_pairs")


def _normalize_total_mass(masses: Tensor) -> Tensor:
    """Scale masses to a total of 1, unless all are zero."""
    total = masses.sum()
    return masses / torch.where(total > 0, total, 1)


def _is_sparse(matrix: Tensor) -> bool:
    """Return whether a matrix is a `torch.sparse` tensor of any layout."""
    return matrix.layout != torch.strided
