"""Tiled backends, which recompute or store each tile of the pairs.

Exponents. Where all exponents are known to be moderate, exp(S) is taken directly and everything else is a factor per
row or per column, so that a pass is a matrix product, an exponential and thin products. Elsewhere (a very low
temperature, a link) the sums keep a running maximum, and exponents are added before the exponential is taken: nothing
overflows, and no sum underflows, at any temperature.

Symmetry. Where rows and columns are the same embeddings, a tile serves the pair (i, j) and the pair (j, i).

Memory. No tensor is larger than a tile, except the embeddings and as many vectors as there are terms.

Processes. With R of them each takes every R-th tile; sums are added up, and of a gradient each process returns its
part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain, islice
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine.half_steps import MAX_UNSHIFTED_EXPONENT_BY_DTYPE
from contraport.engine.masked_geometry import Geometry, LabelExclusion
from contraport.engine.pair_passes import OptionalSums, PairPasses, WeightTerm

TILE_SHAPE = 512, 512
"""Rows and columns of a tile: large enough for a matrix product at full speed, small enough for the cache.

The second is a multiple of the first, the side of the squares on the diagonal of a symmetric problem."""

MAX_STORED_BYTES = 256 << 20
"""Largest size of a log K whose tiles are stored, not recomputed: 8,192 by 8,192 in single precision."""

MAX_SHARED_EXPONENT_GAP = 16.0
"""Largest difference between the exponents of two terms that share one exponential.

The factor that makes up for it, up to e^(2 * 16), also amplifies what has underflowed below e^-87: to at most e^-55."""


_HAS_FAST_CPU_BFLOAT16 = any(
    getattr(torch.cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
)
"""True if this processor has AVX512-BF16 or AMX; determined on import, as `torch.compile` cannot trace it."""


class Tile(NamedTuple):
    """Tile of the matrix of pairs, with its part of the log-kernel.

    Attributes:
        rows: Range of rows of the tile.
        columns: Range of columns of the tile.
        kernel_or_log_kernel: K, or log K (minus infinity where masked), without row and column biases.
        link_input: Argument T of the link function, or log K if there is no link; None if it is not needed.
        stands_for_transpose: Whether the tile also stands for the transposed tile of a symmetric problem.
    """

    rows: slice
    columns: slice
    kernel_or_log_kernel: Tensor
    link_input: Tensor | None
    stands_for_transpose: bool


class StreamedPairPasses(PairPasses):
    """Backend that recomputes each tile of the pairs, in O((N + M) d) memory."""

    description: ClassVar[str] = "tiles recomputed in each pass: O((N + M) d) memory"

    def prepare_passes(self) -> None:
        like = self.log_kernel.inputs[0]
        if uses_cpu_bfloat16(like, self.operand_dtype):
            self.log_kernel = self.log_kernel.with_operand_dtype(self.operand_dtype)
        n, m = self.geometry.shape
        self.row_bias, self.column_bias = self.log_kernel.biases_outside_link()
        self.limit = MAX_UNSHIFTED_EXPONENT_BY_DTYPE[like.dtype]
        # Two buffers, for the kernel and the weight, that every tile overwrites: new memory per tile would be cold.
        self._buffers = self.row_bias.new_empty(2, min(n, TILE_SHAPE[0]), min(m, TILE_SHAPE[1]))

    @cached_property
    def has_bounded_exponents(self) -> bool:
        """True if exponents are small enough for a direct `exp`."""
        return self.log_kernel.compute_absolute_bound_without_biases() <= self.limit

    @cached_property
    def _min_max_labels_by_mask(self) -> dict[LabelExclusion, _MinMaxLabelsPerTile]:
        """Smallest and largest labels in each tile, for each label-based mask."""
        masks = self.geometry.masks
        return {mask: _MinMaxLabelsPerTile(mask.labels) for mask in masks if isinstance(mask, LabelExclusion)}

    def row_column_log_sums(self, column_potential: Tensor | None, row_potential: Tensor | None) -> OptionalSums:
        # The kernel's biases join the potentials; the middle of their range is taken out, so that factors lie as close
        # to 1 as they can, and added to the logarithm again.
        exponents = (
            None if column_potential is None else self.column_bias + column_potential,
            None if row_potential is None else self.row_bias + row_potential,
        )
        ranges = [(0.0, 0.0) if v is None else _midpoint_and_half_range(v) for v in exponents]
        centered = [None if v is None else v - middle for v, (middle, _) in zip(exponents, ranges, strict=True)]
        if self.has_bounded_exponents and max(radius for _, radius in ranges) <= self.limit:
            products = self._multiply_by_unbiased_exp_kernel(*(None if v is None else v.exp() for v in centered))
            sums = [None if v is None else v.log() for v in products]
        else:
            sums = self._stable_log_sums(*centered)
        by_row, by_column = (
            None if v is None else (v + bias).add_(middle)
            for v, (middle, _), bias in zip(sums, ranges, (self.row_bias, self.column_bias), strict=True)
        )
        return by_row, by_column

    def weighted_kernel_sums(self, terms: Sequence[WeightTerm]) -> list[Tensor]:
        groups = self._group_terms_by_exponential(terms)
        if groups[0].shared_exponents is None:
            (group,) = groups
            index = {term.factor_axis: k for k, term in enumerate(terms)}
            by_row, by_column = self._multiply_by_unbiased_exp_kernel(
                group.column_factors[index["columns"]] if "columns" in index else None,
                group.row_factors[index["rows"]] if "rows" in index else None,
            )
            results = {"columns": (by_row, group.row_factors), "rows": (by_column, group.column_factors)}
            sums = []
            for axis in index:
                total, factors = results[axis]
                assert total is not None
                sums.append(total * factors[index[axis]])
            return sums
        sums = [torch.zeros_like(t.column_exponents if t.factor_axis == "rows" else t.row_exponents) for t in terms]
        for tile in self._iter_own_tiles(exponential=False):
            for term, total in zip(terms, sums, strict=True):
                for rows, columns, kernel in _iter_tile_and_transpose(tile):
                    e = self._exponential_on_tile(kernel, *term[:2], rows, columns)
                    if term.factor_axis == "rows":
                        total[columns] += term.factor[rows] @ e
                    else:
                        total[rows] += e @ term.factor[columns]
        self.processes.all_reduce_(*sums)
        return sums

    def input_grads(
        self, terms: Sequence[WeightTerm], needs_grad: Sequence[bool], *, without_link: bool = False
    ) -> list[Tensor | None]:
        inputs, link = self.log_kernel.inputs, None if without_link else self.log_kernel.link
        gradients = [torch.zeros_like(v) if needed else None for v, needed in zip(inputs, needs_grad, strict=True)]
        row_slots = gradients
        if self.is_symmetric:  # both sides are one tensor and share their gradient
            gradients[1], gradients[3] = gradients[0], gradients[2]
            row_slots = [gradients[0], None, gradients[2], None]
        groups = self._group_terms_by_exponential(terms)
        for tile in self._iter_own_tiles(exponential=groups[0].shared_exponents is None):
            weight, *others = (self._gradient_weights_on_tile(group, tile) for group in groups)
            for other in others:
                weight += other
            if link is not None and tile.link_input is not None:
                weight.mul_(link.derivative(tile.link_input))
            # A square on the diagonal is its own mirror image: its rows receive the whole gradient.
            self.log_kernel.add_tile_gradients(
                tile.rows, tile.columns, weight, gradients if tile.stands_for_transpose else row_slots
            )
        return self._reduce_or_scale_gradients(gradients)

    def plan_link_input_row_sums(self, row_potential: Tensor, column_potential: Tensor) -> Tensor:
        sums = torch.zeros_like(row_potential)
        for tile in self._iter_own_tiles(exponential=False, with_link_input=True):
            assert tile.link_input is not None
            for (rows, columns, kernel), t in zip(
                _iter_tile_and_transpose(tile), (tile.link_input, tile.link_input.T), strict=False
            ):
                e = self._exponential_on_tile(kernel, row_potential, column_potential, rows, columns)
                biased = torch.addmv(e.sum(1) * self.row_bias[rows], e, self.column_bias[columns])
                sums[rows] += biased + e.mul_(t).sum(1)
        self.processes.all_reduce_(sums)
        return sums

    def _get_masked_kernel_tile(
        self, rows: slice, columns: slice, *, exponential: bool, with_link_input: bool = False
    ) -> Tile:
        """Compute a tile of log K, or of K if `exponential`."""
        buffer = self._tile_buffer(rows, columns)
        if exponential:
            kernel, t = self.log_kernel.exp_tile_without_biases(rows, columns, buffer), None
        else:
            kernel, t = self.log_kernel.tile_with_link_input(rows, columns, buffer)
            if kernel is t and with_link_input:
                kernel = kernel.clone()
        for mask in self.geometry.masks:
            # Most masks exclude one pair per row: tiles whose ranges of labels do not overlap are skipped.
            if not isinstance(mask, LabelExclusion) or self._min_max_labels_by_mask[mask].may_overlap(rows, columns):
                kernel.masked_fill_(mask.tile(rows, columns), 0 if exponential else -torch.inf)
        return Tile(rows, columns, kernel, t, self.is_symmetric and rows != columns)

    def _tile_buffer(self, rows: slice, columns: slice) -> Tensor:
        """Return the buffer in which a tile is computed."""
        return self._buffers[0, : rows.stop - rows.start, : columns.stop - columns.start]

    def _iter_own_tiles(self, *, exponential: bool, with_link_input: bool = False) -> Iterator[Tile]:
        """Yield the tiles of this process, each valid until the next."""
        for rows, columns in self._iter_tile_ranges_of_process():
            yield self._get_masked_kernel_tile(rows, columns, exponential=exponential, with_link_input=with_link_input)

    def _iter_tile_ranges_of_process(self) -> Iterator[tuple[slice, slice]]:
        """Yield the row and column ranges of this process's tiles.

        A symmetric problem has only the tiles on and above the diagonal.
        """
        n, m = self.geometry.shape
        symmetric = self.is_symmetric
        ranges = (
            (rows, columns)
            for rows in _iter_range_slices(0, n, TILE_SHAPE[0])
            for columns in chain(
                [rows] if symmetric else [], _iter_range_slices(rows.stop if symmetric else 0, m, TILE_SHAPE[1])
            )
        )
        return islice(ranges, self.processes.rank, None, self.processes.size)

    def _multiply_by_unbiased_exp_kernel(self, right: Tensor | None, left: Tensor | None) -> OptionalSums:
        """Return K v and u^T K for the kernel K without row and column biases."""
        by_row = None if right is None else torch.zeros_like(self.row_bias)
        by_column = None if left is None else torch.zeros_like(self.column_bias)
        for tile in self._iter_own_tiles(exponential=True):
            for rows, columns, e in _iter_tile_and_transpose(tile):
                if by_row is not None and right is not None:
                    by_row[rows].addmv_(e, right[columns])
                if by_column is not None and left is not None:
                    by_column[columns].addmv_(e.T, left[rows])
        self.processes.all_reduce_(by_row, by_column)
        return by_row, by_column

    def _stable_log_sums(self, column_potential: Tensor | None, row_potential: Tensor | None) -> list[Tensor | None]:
        """Return row and column log-sum-exps, computed stably with a running maximum."""
        n, m = self.geometry.shape
        by_row = None if column_potential is None else _RunningLogSum(column_potential.new_full((n,), -torch.inf))
        by_column = None if row_potential is None else _RunningLogSum(row_potential.new_full((m,), -torch.inf))
        for tile in self._iter_own_tiles(exponential=False):
            for rows, columns, kernel in _iter_tile_and_transpose(tile):
                if by_row is not None and column_potential is not None:
                    by_row.add_and_overwrite(rows, kernel + column_potential[columns])
                if by_column is not None and row_potential is not None:
                    by_column.add_and_overwrite(columns, kernel.T + row_potential[rows])
        for sums in (by_row, by_column):
            if sums is not None:
                self.processes.all_reduce_log_sums_(sums.maximum, sums.total)
        return [None if v is None else v.value() for v in (by_row, by_column)]

    def _gradient_weights_on_tile(self, group: _TermGroup, tile: Tile) -> Tensor:
        """Return the weights of a tile's pairs in the gradient, summed over a group of terms."""
        rows, columns = tile.rows, tile.columns
        u, v = group.row_factors, group.column_factors
        out = self._buffers[1, : rows.stop - rows.start, : columns.stop - columns.start]
        if group.shared_exponents is None:
            # W + W^T = E o (U V^T + V U^T): one product of twice the rank, as E itself is symmetric.
            left = torch.cat([u[:, rows], v[:, rows]]) if self.is_symmetric else u[:, rows]
            right = torch.cat([v[:, columns], u[:, columns]]) if self.is_symmetric else v[:, columns]
            return _sum_outer_products(left, right, out).mul_(tile.kernel_or_log_kernel)
        a, b = group.shared_exponents
        weight = self._exponential_on_tile(tile.kernel_or_log_kernel, a, b, rows, columns)
        weight.mul_(_sum_outer_products(u[:, rows], v[:, columns], out))
        if self.is_symmetric:
            image = self._exponential_on_tile(tile.kernel_or_log_kernel, b, a, rows, columns)
            weight.addcmul_(image, _sum_outer_products(v[:, rows], u[:, columns], out))
        return weight

    def _exponential_on_tile(
        self, tile_without_biases: Tensor, row_exponents: Tensor, column_exponents: Tensor, rows: slice, columns: slice
    ) -> Tensor:
        """Return exp(log K + row exponents + column exponents) on a tile, biases included."""
        by_row = row_exponents[rows] + self.row_bias[rows]
        return (
            (tile_without_biases + by_row[:, None]).add_(column_exponents[columns] + self.column_bias[columns]).exp_()
        )

    def _group_terms_by_exponential(self, terms: Sequence[WeightTerm]) -> list[_TermGroup]:
        """Group the summands of the pair weights by their exponential factor.

        Where all exponents are moderate, all are one group, whose exponents are factors. Otherwise a group takes
        its exponents from one of its own terms, whose exp(S + A + B) is the weight of a softmax and at most 1.
        """
        if self.has_bounded_exponents:
            row_exponents = torch.stack([t.row_exponents for t in terms]).add_(self.row_bias)
            column_exponents = torch.stack([t.column_exponents for t in terms]).add_(self.column_bias)
            ranges = _midpoint_and_half_range(row_exponents), _midpoint_and_half_range(column_exponents)
            if all(abs(middle) + radius <= self.limit for middle, radius in ranges):
                return [_build_term_group(terms, None, row_exponents, column_exponents)]
        groups: list[list[WeightTerm]] = []
        for term in terms:
            for group in groups:
                if all(
                    (a - b).abs().amax() <= MAX_SHARED_EXPONENT_GAP for a, b in zip(term[:2], group[0][:2], strict=True)
                ):
                    group.append(term)
                    break
            else:
                groups.append([term])
        return [
            _build_term_group(
                group,
                group[0][:2],
                torch.stack([t.row_exponents for t in group]) - group[0].row_exponents,
                torch.stack([t.column_exponents for t in group]) - group[0].column_exponents,
            )
            for group in groups
        ]


class StoredPairPasses(StreamedPairPasses):
    """Backend that stores every tile of the pairs, in O(N M) memory.

    All tiles lie one after the other in one tensor, which is saved for the gradient: K where exponents are
    moderate, else log K itself; then, if there is a link, T of all tiles.
    """

    description: ClassVar[str] = "log K computed once and kept in tiles; exact gradient in one more pass"

    def prepare_passes(self) -> None:
        super().prepare_passes()
        self._has_link = self.log_kernel.link is not None
        self._starts, self._entries = {}, 0
        for rows, columns in self._iter_tile_ranges_of_process():
            self._starts[rows.start, columns.start] = self._entries
            self._entries += (rows.stop - rows.start) * (columns.stop - columns.start)
        self._filled = set(self._starts) if self.saved else set()
        size = _stored_entries_upper_bound(self.geometry, self.processes)
        self._storage = self.saved[0] if self.saved else self.row_bias.new_empty(size)

    @cached_property
    def has_bounded_exponents(self) -> bool:
        """True if exponents are small enough to store K rather than log K.

        It is saved, not computed again: a compiled graph may recompute the embeddings for the gradient, with another
        rounding, and a bound at the limit could then fall on the other side.
        """
        return bool(self.saved[1]) if self.saved else super().has_bounded_exponents

    def computed_tensors_to_save(self) -> list[Tensor]:
        """Return the stored tiles, and whether they hold K rather than log K."""
        return [self._storage, torch.tensor(self.has_bounded_exponents)]

    @staticmethod
    def empty_saved_tensors_for_tracing(geometry: Geometry, processes: Processes) -> list[Tensor]:
        like = geometry.log_kernel.inputs[0]
        return [like.new_empty(_stored_entries_upper_bound(geometry, processes)), torch.empty((), dtype=torch.bool)]

    def _tile_buffer(self, rows: slice, columns: slice) -> Tensor:
        """Return the stored buffer to which a computed tile is written."""
        # The tile of T where the kernel has a link, else that of the kernel.
        return self._stored_tile_view(rows, columns, link_input=self._has_link)

    def _stored_tile_view(self, rows: slice, columns: slice, *, link_input: bool = False) -> Tensor:
        """Return the part of the buffer that stores the kernel or the link inputs of a tile."""
        height, width = rows.stop - rows.start, columns.stop - columns.start
        start = self._starts[rows.start, columns.start] + (self._entries if link_input else 0)
        return self._storage[start : start + height * width].view(height, width)

    def _get_masked_kernel_tile(
        self, rows: slice, columns: slice, *, exponential: bool, with_link_input: bool = False
    ) -> Tile:
        """Return a stored tile, which is computed on first use."""
        kernel, key = self._stored_tile_view(rows, columns), (rows.start, columns.start)
        t = self._stored_tile_view(rows, columns, link_input=True) if self._has_link else None
        if key not in self._filled:
            tile = super()._get_masked_kernel_tile(rows, columns, exponential=self.has_bounded_exponents)
            for stored, value in ((kernel, tile.kernel_or_log_kernel), (t, tile.link_input)):
                if stored is not None and value is not None and value.data_ptr() != stored.data_ptr():
                    stored.copy_(value)
            self._filled.add(key)
        if self.has_bounded_exponents and not exponential:
            kernel = kernel.log()
        if with_link_input and t is None:
            t = kernel.masked_fill(kernel == -torch.inf, 0)  # without a link T is log K; masked pairs have weight 0
        return Tile(rows, columns, kernel, t, self.is_symmetric and rows != columns)


def uses_cpu_bfloat16(embeddings: Tensor, operand_dtype: torch.dtype) -> bool:
    """Return whether tiles are multiplied in bfloat16 on a CPU."""
    if operand_dtype != torch.bfloat16 or embeddings.dtype != torch.float32:
        return False
    return has_fast_cpu_bfloat16(embeddings.device)


def has_fast_cpu_bfloat16(device: torch.device) -> bool:
    """Return whether a device is a CPU with AVX512-BF16 or AMX."""
    return device.type == "cpu" and _HAS_FAST_CPU_BFLOAT16


def _stored_entries_upper_bound(geometry: Geometry, processes: Processes) -> int:
    """Return an upper bound on the number of kernel entries that a process stores."""
    (n, m), (height, width) = geometry.shape, TILE_SHAPE
    strips = -(-n // height)
    tiles = strips * -(-m // width)
    if geometry.is_symmetric:  # squares on the diagonal; to their right, ranges of several squares
        squares = width // height
        tiles = strips + strips * (strips - 1) // (2 * squares) + (strips if squares > 1 else 0)
    own = -(-tiles // processes.size)
    size: int = torch.sym_min(own * height * width, n * m)  # type: ignore[assignment]
    return size if geometry.log_kernel.link is None else 2 * size


class _MinMaxLabelsPerTile:
    """Smallest and largest label of each tile's rows and columns."""

    def __init__(self, labels: tuple[Tensor, Tensor]) -> None:
        blocks = (side.split(TILE_SHAPE[0]) for side in labels)
        self.rows, self.columns = ([(int(part.amin()), int(part.amax())) for part in side] for side in blocks)

    def may_overlap(self, rows: slice, columns: slice) -> bool:
        """Return whether the label ranges of a tile's rows and columns overlap."""
        low, high = self.rows[rows.start // TILE_SHAPE[0]]
        ranges = self.columns[columns.start // TILE_SHAPE[0] : -(-columns.stop // TILE_SHAPE[0])]
        return any(low <= column_high and column_low <= high for column_low, column_high in ranges)


class _RunningLogSum:
    """Running log-sum-exp of rows whose entries are added block by block."""

    def __init__(self, minus_infinities: Tensor) -> None:
        self.maximum, self.total = minus_infinities, torch.zeros_like(minus_infinities)

    def add_and_overwrite(self, rows: slice, values: Tensor) -> None:
        """Add entries, (rows, k), to the running log-sum-exp; their memory is overwritten."""
        old = self.maximum[rows]
        new = torch.maximum(old, values.amax(1))
        shift = new.masked_fill(new == -torch.inf, 0)  # -inf - -inf would be NaN
        piece = values.sub_(shift[:, None]).exp_().sum(1)
        self.total[rows] = self.total[rows] * torch.exp(old - shift) + piece
        self.maximum[rows] = new

    def value(self) -> Tensor:
        """Return each row's log-sum-exp so far, -inf before the first entry."""
        return self.maximum + self.total.log()


class _TermGroup(NamedTuple):
    """Group of summands of the pair weights that are multiplied by the same exponential.

    The factor is exp(S + A + B), with the log-kernel S.

    Attributes:
        shared_exponents: Shared exponents A of the rows, (N,), and B of the columns, (M,); None if both are zero.
        row_factors: Factors U^T of the rows, (k, N).
        column_factors: Factors V^T of the columns, (k, M).
    """

    shared_exponents: tuple[Tensor, Tensor] | None
    row_factors: Tensor
    column_factors: Tensor


def _build_term_group(
    terms: Sequence[WeightTerm],
    shared_exponents: tuple[Tensor, Tensor] | None,
    remaining_row_exponents: Tensor,
    remaining_column_exponents: Tensor,
) -> _TermGroup:
    """Build a group of weight terms that share an exponential.

    The rest of a term's exponents goes into its factors.

    Args:
        terms: the terms.
        shared_exponents: exponents A and B of the group.
        remaining_row_exponents: exponent of each term minus A, (k, N); overwritten.
        remaining_column_exponents: exponent of each term minus B, (k, M); overwritten.
    """
    row_factors, column_factors = remaining_row_exponents.exp_(), remaining_column_exponents.exp_()
    for k, term in enumerate(terms):
        side = row_factors if term.factor_axis == "rows" else column_factors
        side[k] *= term.factor
    return _TermGroup(shared_exponents, row_factors, column_factors)


def _sum_outer_products(row_factors: Tensor, column_factors: Tensor, overwritten_buffer: Tensor | None) -> Tensor:
    """Return the sum of k outer products, (n, m)."""
    if len(row_factors) > 6:  # fewer are faster one by one
        return torch.mm(row_factors.T, column_factors, out=overwritten_buffer)
    total = torch.mul(row_factors[0, :, None], column_factors[0], out=overwritten_buffer)
    for row, column in zip(row_factors[1:], column_factors[1:], strict=True):
        total.addcmul_(row[:, None], column)
    return total


def _iter_range_slices(start: int, stop: int, length: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `length` from start to stop."""
    for first in range(start, stop, length):
        yield slice(first, min(first + length, stop))


def _midpoint_and_half_range(values: Tensor) -> tuple[float, float]:
    """Return the midpoint and the half-width of the range of values."""
    low, high = (float(v) for v in values.aminmax())
    return (high + low) / 2, (high - low) / 2


def _iter_tile_and_transpose(tile: Tile) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield (rows, columns, values) of a tile, and of its transpose in symmetric matrices."""
    yield tile.rows, tile.columns, tile.kernel_or_log_kernel
    if tile.stands_for_transpose:
        yield tile.columns, tile.rows, tile.kernel_or_log_kernel.T
