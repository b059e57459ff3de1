"""A target given entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from contraport.distributed import Processes, gather
from contraport.errors import check, describe_value
from contraport.objectives.inputs import Attributes, CallInputs, as_numbers, check_values
from contraport.objectives.layouts import Block, PairPattern
from contraport.objectives.targets.target import DenseTarget, SparseTarget, Target, TargetPlan, normalize_row_masses


@dataclass(frozen=True, eq=False, repr=False)
class PairList(Target):
    """Each row is wanted at the items that are listed with its own: mass 1/N a row, in equal parts or by shares.

    A pair is a row of the first view and a row of the second, (i, i) the two views of item i where it is wanted at its
    own. In layouts that compare all views with all of them (`Joint`) every view of the one item is wanted at every view
    of the other, and the other way round. Under `torch.distributed` each process lists the pairs of its own rows.

    Args:
        pairs: (k, 2) whole numbers, or a list of pairs, at least one; what is listed twice counts once.
        shares: how much of its row each pair gets, (k,), in proportion; of what is listed twice they add up. None is
            equal parts.

    Raises:
        UsageError: it is no list of pairs, or the shares are no nonnegative finite numbers, one for each; in the call,
            a pair names an item that is not there, or one that the layout leaves out.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(3, 1), torch.zeros(3, 1))
    >>> (PairList([(0, 0), (0, 1), (2, 1)])(block, {}).dense() * 6).round()
    tensor([[1., 1., 0.],
            [0., 0., 0.],
            [0., 2., 0.]])
    """

    pairs: Tensor | Sequence[Sequence[int]] = field(repr=False)
    shares: Tensor | Sequence[float] | None = field(default=None, repr=False)
    _turned: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        pairs = as_numbers("target", self.pairs)
        good = pairs.ndim == 2 and pairs.shape[1] == 2 and len(pairs) > 0 and not pairs.is_floating_point()
        check(good, f"target: expected a list of pairs of whole numbers, (k, 2), got {describe_value(pairs)}.")
        if self.shares is not None:
            shares = as_numbers("shares", self.shares)
            got = tuple(shares.shape)
            check(got == (len(pairs),), f"shares: expected one number for each of {len(pairs)} pairs, got shape {got}.")
            check_values("shares", shares, torch.isfinite(shares) & (shares >= 0), "nonnegative finite numbers")

    @property
    def _pairs(self) -> Tensor:
        return as_numbers("target", self.pairs).long()

    @property
    def form(self) -> str:
        """Whether there are shares too."""
        return "PairList" if self.shares is None else "PairList with shares"

    def check_call(self, call: CallInputs) -> None:
        """Raise `UsageError` where a pair names a row that is not there."""
        z, apart = call.views[0], call.apart
        sizes = (len(z), len(z)) if apart is None else (apart, len(z) - apart)
        for place, (side, size) in enumerate(zip(self._pairs.unbind(1), sizes, strict=True)):
            within = (side >= 0) & (side < size)
            check_values("target", side, within, f"rows of z{place} from 0 to {size - 1} in the pairs")

    def among(self, processes: Processes, call: CallInputs) -> PairList:
        """Return the pairs of all processes, by the places of their items among those of all."""
        z = call.views[0]
        pairs = self._pairs.to(z.device) + torch.tensor([0, call.apart or 0], device=z.device) + processes.row_offset(z)
        shares = None if self.shares is None else processes.gather(as_numbers("shares", self.shares).to(z.device))
        return PairList(processes.gather(pairs), shares)

    def __call__(self, block: Block, attributes: Attributes) -> SparseTarget:
        """Return the target plan of a block."""
        pattern, pairs = block.pattern, self._pairs
        shares = torch.ones(len(pairs)) if self.shares is None else as_numbers("shares", self.shares)
        shares = shares.to(pairs.device, block.precision)
        if block.x is block.y:
            others = pairs[:, 0] != pairs[:, 1]
            pairs, shares = torch.cat([pairs, pairs[others].flip(1)]), torch.cat([shares, shares[others]])
        rows, columns, which = _places_of(pairs.flip(1) if self._turned else pairs, pattern)
        kept = rows != columns if block.x is block.y else torch.ones_like(rows, dtype=torch.bool)
        entries, place = torch.unique(rows[kept] * block.shape[1] + columns[kept], return_inverse=True)
        values = shares.new_zeros(len(entries)).index_add(0, place, shares[which[kept]])
        values = values if self.shares is not None else torch.ones_like(values)
        rows, columns = entries // block.shape[1], entries % block.shape[1]
        others = pattern.row_items[rows] != pattern.column_items[columns]
        _check_compared([mask.at(rows, columns) & others for mask in pattern.masks])
        per_row = values.new_zeros(block.shape[0]).index_add(0, rows, values)[rows]
        return SparseTarget(
            rows, columns, values / (block.shape[0] * per_row.masked_fill(per_row == 0, 1)), block.shape
        )

    def mirrored(self) -> PairList:
        return PairList(self.pairs, self.shares, not self._turned)


def _places_of(pairs: Tensor, pattern: PairPattern) -> tuple[Tensor, Tensor, Tensor]:
    """Return every row and column that show a pair of items, and the number of that pair."""
    shown = [
        _places_by_item(items, pattern.size)[side] for side, items in zip(pairs.unbind(1), pattern.items, strict=True)
    ]
    numbers = torch.arange(len(pairs), device=pairs.device)[:, None, None]
    rows, columns, which = torch.broadcast_tensors(shown[0][:, :, None], shown[1][:, None, :], numbers)
    there = (rows >= 0) & (columns >= 0)
    return rows[there], columns[there], which[there]


def _places_by_item(shown: Tensor, size: int) -> Tensor:
    """Return at which places each item is shown, (size, most), -1 where there are no more; `shown` is (N,) items."""
    items, places = shown.sort(stable=True)
    counts = torch.bincount(items, minlength=size)
    turn = torch.arange(len(items), device=items.device) - (counts.cumsum(0) - counts)[items]
    table = items.new_full((size, int(counts.amax())), -1)
    return table.index_put((items, turn), places)


@dataclass(frozen=True, eq=False, repr=False)
class Matrix(Target):
    """Any plan that is wanted, given entry by entry.

    Args:
        matrix: proportional to the wanted plan, (N, M) of the layout, nonnegative, dense or `torch.sparse`; it is
            scaled to total mass 1. In the joint layout it is (2n, 2n), view 0 before view 1. Rows and columns of
            views that are absent count for nothing.

    Raises:
        UsageError: an entry is negative or not finite, all are zero, or, on a block, the shape differs or there is mass
            on a pair that the layout leaves out.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> Matrix(torch.tensor([[3.0, 1.0], [1.0, 3.0]]))(block, {}).dense()
    tensor([[0.3750, 0.1250],
            [0.1250, 0.3750]])
    """

    complete: ClassVar[bool] = True  # however its mass is spread over the rows

    matrix: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        matrix = self.matrix
        check(
            isinstance(matrix, Tensor) and matrix.ndim == 2,
            f"target: expected a tensor with two dimensions, got {describe_value(matrix)}.",
        )
        values = matrix
        if _is_sparse(matrix):
            object.__setattr__(self, "matrix", matrix.to_sparse_coo().coalesce())  # of any sparse layout
            values = self.matrix.values()
        expected = "nonnegative finite numbers that are not all zero"
        check_values("target", values, torch.isfinite(values) & (values >= 0), expected)
        check(bool(values.sum() > 0), f"target: expected {expected}, got zeros.")

    def __call__(self, block: Block, attributes: Attributes) -> TargetPlan:
        """Return the target plan of a block."""
        matrix = self._of_those_present(block).to(block.x.device, block.precision)
        shape = tuple(matrix.shape)
        check(shape == block.shape, f"target: expected shape {block.shape}, the layout's pairs, got {shape}.")
        if _is_sparse(matrix):
            matrix = matrix.coalesce()
            rows, columns = matrix.indices()
            _check_compared([mask.at(rows, columns) & (matrix.values() > 0) for mask in block.pattern.masks])
            values = matrix.values()
            return SparseTarget(rows, columns, _of_unit_mass(values), block.shape)
        _check_compared([mask.dense() & (matrix > 0) for mask in block.pattern.masks])
        return DenseTarget(_of_unit_mass(matrix))

    def _of_those_present(self, block: Block) -> Tensor:
        """Return the entries of the rows and columns that are there; a matrix of these alone is as good."""
        chosen = block.pattern.chosen
        if chosen is None or tuple(self.matrix.shape) == block.shape:
            return self.matrix
        rows, columns = (side.to(self.matrix.device) for side in chosen)
        good = bool(rows.amax() < self.matrix.shape[0] and columns.amax() < self.matrix.shape[1])
        check(good, f"target: expected shape {block.shape}, the pairs that are there, got {tuple(self.matrix.shape)}.")
        return self.matrix.index_select(0, rows).index_select(1, columns)

    def mirrored(self) -> Matrix:
        return Matrix(self.matrix.T)

    def gathered(self) -> Matrix:
        """Return the rule with the rows of all processes."""
        return Matrix(gather(self.matrix.to_dense() if _is_sparse(self.matrix) else self.matrix))


@dataclass(frozen=True, eq=False, repr=False)
class SimilarityMatrix(Target):
    """Each row is wanted where its item is wanted, by a matrix between all items: mass 1/N a row.

    Every view of one item is wanted at every view of the other, its own other view by the diagonal. Pairs that the
    layout leaves out are left out, and rows that want nothing of what is there add nothing. It is held for a batch as a
    matrix; under `torch.distributed` each process names its own items.

    Args:
        matrix: how much item i wants item j, (items, items), nonnegative, dense or `torch.sparse`; only its entries
            between items of the batch are read. It may be one-sided.
        items: which item each of the batch is, (n,) whole numbers.

    Raises:
        UsageError: the matrix is not square or holds no numbers; in the call, an item is outside it, the items are not
            one for each of the batch, or an entry that is read is negative or not finite.

    >>> import torch
    >>> from contraport.objectives import Cross
    >>> (block,) = Cross()(torch.zeros(2, 1), torch.zeros(2, 1))
    >>> friends = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    >>> SimilarityMatrix(friends, torch.tensor([2, 0]))(block, {}).dense()
    tensor([[0.5000, 0.0000],
            [0.3750, 0.1250]])
    """

    matrix: Tensor = field(repr=False)
    items: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        matrix, items = self.matrix, self.items
        square = isinstance(matrix, Tensor) and matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
        check(square, f"target: expected a matrix between items, (items, items), got {describe_value(matrix)}.")
        whole = isinstance(items, Tensor) and items.ndim == 1 and not items.is_floating_point()
        expected = "the number of each item of the batch, (n,) whole numbers"
        check(whole, f"target: expected {expected}, got {describe_value(items)}.")

    def among(self, processes: Processes, call: CallInputs) -> SimilarityMatrix:
        """Return the rule for the items of all processes."""
        return SimilarityMatrix(self.matrix, processes.gather(self.items))

    def __call__(self, block: Block, attributes: Attributes) -> DenseTarget:
        """Return the target plan of a block."""
        size, known = block.pattern.size, self.matrix.shape[0]
        check(len(self.items) == size, f"target: expected {size} items, those of the batch, got {len(self.items)}.")
        within = (self.items >= 0) & (self.items < known)
        check_values("target", self.items, within, f"items from 0 to {known - 1}, those of the matrix")
        wanted = _between(self.matrix, self.items).to(block.x.device, block.precision)
        good = (wanted >= 0) & wanted.isfinite()
        check_values("target", wanted, good, "nonnegative finite numbers between the items of the batch")
        between = wanted[block.pattern.row_items][:, block.pattern.column_items]
        return DenseTarget(normalize_row_masses(block.pattern.masked(between, 0)))


def _between(matrix: Tensor, items: Tensor) -> Tensor:
    """Return the entries between some items, (n, n), dense, on the device of the matrix."""
    items = items.to(matrix.device)
    if not _is_sparse(matrix):
        return matrix[items][:, items]
    # Only the rows of the items are looked at: entries are in order, so that what is read grows with the batch.
    matrix = matrix.to_sparse_coo().coalesce()
    (of_rows, of_columns), found = matrix.indices(), items.unique()
    starts, ends = (torch.searchsorted(of_rows, found, right=right) for right in (False, True))
    counts = ends - starts
    row = torch.arange(len(found), device=items.device).repeat_interleave(counts)
    entry = torch.arange(len(row), device=items.device) + (ends - counts.cumsum(0))[row]
    column = torch.searchsorted(found, of_columns[entry]).clamp_max(len(found) - 1)
    there = found[column] == of_columns[entry]
    values = matrix.values()[entry[there]]
    dense = values.new_zeros(len(found), len(found)).index_put((row[there], column[there]), values)
    place = torch.searchsorted(found, items)
    return dense[place][:, place]


def _check_compared(refused: list[Tensor]) -> None:
    good = not any(bool(pairs.any()) for pairs in refused)
    check(good, "target: puts mass on pairs that are left out (self pairs, say, or items with equal ids).")


def _of_unit_mass(wanted: Tensor) -> Tensor:
    """Return what is wanted scaled to mass 1 in all; where nothing is wanted of what is there, it stays so."""
    total = wanted.sum()
    return wanted / torch.where(total > 0, total, 1)


def _is_sparse(matrix: Tensor) -> bool:
    return matrix.layout != torch.strided
