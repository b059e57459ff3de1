"""The passes over all pairs, tile by tile: each tile recomputed every time, or kept from its first computation.

Exponents. Where all exponents are known to be moderate, exp(S) is taken as it is and everything else is a factor on
rows and columns, so that a pass is a matrix product, an exponential and thin products. Elsewhere (a very low
temperature, a heavy link) a running maximum follows the sums, and exponents are added before the exponential is taken:
nothing overflows, and no sum underflows, at any temperature.

Symmetry. Where rows and columns are the same embeddings, a tile serves the pair (i, j) and the pair (j, i).

Memory. No tensor is larger than a tile, except the embeddings and as many vectors as there are terms.

Processes. Each takes every so many-th tile; sums are added up, and of a gradient each sends back its part.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from contraport.distributed import Processes
from contraport.engine.geometry import Geometry, LabelMask
from contraport.engine.half_steps import MODERATE
from contraport.engine.passes import Passes, Term

TILE = 512, 512
"""Rows and columns of a tile: large enough for a matrix product at full speed, small enough for the cache. The second
is a multiple of the first, which is also the side of the squares on the diagonal of a symmetric problem."""

STORED_BYTES = 256 << 20
"""Up to so many bytes (8,192 by 8,192 in single precision) log K is kept rather than recomputed."""

REACH = 16.0
"""How far (in the exponent) a term may lie from its group's: e^{2 REACH} amplifies what has underflowed below e^-87."""


class Tile(NamedTuple):
    """A rectangle of pairs.

    Attributes:
        rows: its rows.
        columns: its columns.
        core: log K less the kernel's biases, minus infinity where masked; or exp of it.
        t: T less the kernel's biases, where it was asked for or the kernel has a link.
        mirrored: whether it stands for its transpose as well.
    """

    rows: slice
    columns: slice
    core: Tensor
    t: Tensor | None
    mirrored: bool


class Streamed(Passes):
    """The passes tile by tile, each tile recomputed every time: O((N + M) d) memory.

    Attributes:
        recomputes: whether a tile is computed more than once.
    """

    recomputes: ClassVar[bool] = True
    summary: ClassVar[str] = "tiles recomputed in each pass: O((N + M) d) memory"

    def __init__(
        self,
        geometry: Geometry,
        processes: Processes,
        saved: Sequence[Tensor] = (),
        operands: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(geometry, processes, saved, operands)
        like = self.log_kernel.inputs[0]
        n, m = geometry.shape
        biases = self.log_kernel.biases()
        self.row_bias, self.column_bias = (like.new_zeros(n), like.new_zeros(m)) if biases is None else biases
        self.limit = MODERATE[like.dtype]
        self._space = self.row_bias.new_empty(2, min(n, TILE[0]), min(m, TILE[1]))
        self._thin: dict[tuple[int, int, int], tuple[Tensor, ...]] = {}

    @cached_property
    def flat(self) -> bool:
        """True if all exponents of the core are bounded."""
        return self.log_kernel.bound() <= self.limit

    @cached_property
    def _labels(self) -> list[_Ranges | None]:
        return [_Ranges(mask.labels) if isinstance(mask, LabelMask) else None for mask in self.geometry.masks]

    def log_sum_exp(self, over_columns: Tensor | None, over_rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        q = None if over_columns is None else self.column_bias + over_columns
        p = None if over_rows is None else self.row_bias + over_rows
        middles, reaches = zip(*((0.0, 0.0) if v is None else _range(v) for v in (q, p)), strict=True)
        centred = [None if v is None else v - middle for v, middle in zip((q, p), middles, strict=True)]
        if self.flat and max(reaches) <= self.limit:
            products = self._products(*(None if v is None else v.exp() for v in centred))
            sums = [None if v is None else v.log() for v in products]
        else:
            sums = self._running_log_sums(*centred)
        by_row, by_column = (
            None if v is None else (v + bias).add_(middle)
            for v, middle, bias in zip(sums, middles, (self.row_bias, self.column_bias), strict=True)
        )
        return by_row, by_column

    def weighted_sum(self, terms: Sequence[Term]) -> list[Tensor]:
        groups = self._collapse(terms)
        if groups[0].base is None:
            (group,) = groups
            place = {term.axis: k for k, term in enumerate(terms)}
            by_row, by_column = self._products(
                group.column_factors[place["columns"]] if "columns" in place else None,
                group.row_factors[place["rows"]] if "rows" in place else None,
            )
            found = {"columns": (by_row, group.row_factors), "rows": (by_column, group.column_factors)}
            sums = []
            for axis in place:
                total, factors = found[axis]
                assert total is not None
                sums.append(total * factors[place[axis]])
            return sums
        sums = [torch.zeros_like(t.log_columns if t.axis == "rows" else t.log_rows) for t in terms]
        for tile in self._tiles(exponential=False):
            for term, total in zip(terms, sums, strict=True):
                for rows, columns, core in _with_mirror(tile):
                    e = _exponential(core, term.log_rows[rows], term.log_columns[columns], self, rows, columns)
                    if term.axis == "rows":
                        total[columns] += term.weight[rows] @ e
                    else:
                        total[rows] += e @ term.weight[columns]
        self.processes.add_up(*sums)
        return sums

    def gradient(self, terms: Sequence[Term], wanted: Sequence[bool], *, held: bool = False) -> list[Tensor | None]:
        gradients, link = self._slots(wanted), None if held else self.log_kernel.link
        of_rows = [gradients[0], None, gradients[2], None] if self.symmetric else gradients
        for tile, weight in self._weights(terms):
            if link is not None and tile.t is not None:
                weight.mul_(link.derivative(tile.t))
            # A square on the diagonal is its own mirror image, so that its rows have the whole.
            slots = gradients if tile.mirrored else of_rows
            self.log_kernel.pull(tile.rows, tile.columns, weight, slots)
        return self._contributed(gradients)

    def sums_of_t(self, f: Tensor, g: Tensor) -> Tensor:
        sums = torch.zeros_like(f)
        for tile in self._tiles(exponential=False, with_t=True):
            assert tile.t is not None
            for rows, columns, core, t in [
                (tile.rows, tile.columns, tile.core, tile.t),
                (tile.columns, tile.rows, tile.core.T, tile.t.T),
            ][: 1 + tile.mirrored]:
                e = _exponential(core, f[rows], g[columns], self, rows, columns)
                biased = torch.addmv(e.sum(1) * self.row_bias[rows], e, self.column_bias[columns])
                sums[rows] += biased + e.mul_(t).sum(1)
        self.processes.add_up(sums)
        return sums

    def _tile(self, rows: slice, columns: slice, *, exponential: bool, with_t: bool = False) -> Tile:
        buffer = self._buffer(0, rows, columns)
        if exponential:
            core, t = self.log_kernel.exponential(rows, columns, buffer), None
        else:
            core, t = self.log_kernel.tile(rows, columns, buffer)
            if core is t and with_t:
                core = core.clone()
        for position in range(len(self.geometry.masks)):
            self._exclude(position, rows, columns, core, 0 if exponential else -torch.inf)
        return Tile(rows, columns, core, t, self.symmetric and rows != columns)

    def _exclude(self, position: int, rows: slice, columns: slice, core: Tensor, value: float) -> None:
        """Write a value where a mask excludes pairs; the few pairs of a thin mask are found once and remembered."""
        labels, key = self._labels[position], (position, rows.start, columns.start)
        if labels is not None and not labels.may_meet(rows, columns):
            return
        if key in self._thin:
            core.index_put_(self._thin[key], core.new_tensor(value))
            return
        mask = self.geometry.masks[position].tile(rows, columns)
        core.masked_fill_(mask, value)
        if self.recomputes and labels is not None and mask.count_nonzero() <= TILE[0]:
            self._thin[key] = mask.nonzero(as_tuple=True)

    def _buffer(self, number: int, rows: slice, columns: slice) -> Tensor:
        """Return where a tile is to be written: every tile overwrites the one before."""
        return self._space[number, : rows.stop - rows.start, : columns.stop - columns.start]

    def _tiles(self, *, exponential: bool, with_t: bool = False) -> Iterator[Tile]:
        for rows, columns in self._own_rectangles():
            yield self._tile(rows, columns, exponential=exponential, with_t=with_t)

    def _own_rectangles(self) -> Iterator[tuple[slice, slice]]:
        """Yield where the tiles of this process are."""
        rank, processes = self.processes
        return islice(self._rectangles(), rank, None, processes)

    def _rectangles(self) -> Iterator[tuple[slice, slice]]:
        """Yield where the tiles are; in a symmetric problem the squares on the diagonal and what is right of them."""
        n, m = self.geometry.shape
        for rows in _stretches(0, n, TILE[0]):
            if self.symmetric:
                yield rows, rows
            for columns in _stretches(rows.stop if self.symmetric else 0, m, TILE[1]):
                yield rows, columns

    def _products(self, right: Tensor | None, left: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return E right, (N,), and E^T left, (M,), with E = exp(core), in one pass; right (M,), left (N,)."""
        by_row = None if right is None else torch.zeros_like(self.row_bias)
        by_column = None if left is None else torch.zeros_like(self.column_bias)
        for tile in self._tiles(exponential=True):
            for rows, columns, e in _with_mirror(tile):
                if by_row is not None and right is not None:
                    by_row[rows].addmv_(e, right[columns])
                if by_column is not None and left is not None:
                    by_column[columns].addmv_(e.T, left[rows])
        self.processes.add_up(by_row, by_column)
        return by_row, by_column

    def _running_log_sums(self, q: Tensor | None, p: Tensor | None) -> list[Tensor | None]:
        n, m = self.geometry.shape
        by_row = None if q is None else _LogSum(q.new_full((n,), -torch.inf))
        by_column = None if p is None else _LogSum(p.new_full((m,), -torch.inf))
        for tile in self._tiles(exponential=False):
            for rows, columns, core in _with_mirror(tile):
                if by_row is not None and q is not None:
                    by_row.add(rows, core + q[columns])
                if by_column is not None and p is not None:
                    by_column.add(columns, core.T + p[rows])
        for sums in (by_row, by_column):
            if sums is not None:
                self.processes.join_log_sums(sums.maximum, sums.total)
        return [None if v is None else v.value() for v in (by_row, by_column)]

    def _weights(self, terms: Sequence[Term]) -> Iterator[tuple[Tile, Tensor]]:
        """Yield each tile with its part of W; in a symmetric problem that of its mirror image is added, transposed."""
        groups = self._collapse(terms)
        for tile in self._tiles(exponential=groups[0].base is None):
            parts = [group.weight(tile, self) for group in groups]
            weight = parts[0]
            for part in parts[1:]:
                weight += part
            yield tile, weight

    def _collapse(self, terms: Sequence[Term]) -> list[_Group]:
        """Gather the terms into as few groups as their exponents allow; in ordinary training that is one.

        A group takes its exponents from one of its own terms, where exp(S + A + B) is the weight of a softmax and at
        most 1; or, where all are moderate, all terms are one group whose exponents are factors.
        """
        if self.flat:
            log_rows = torch.stack([t.log_rows for t in terms]).add_(self.row_bias)
            log_columns = torch.stack([t.log_columns for t in terms]).add_(self.column_bias)
            if all(abs(middle) + reach <= self.limit for middle, reach in (_range(log_rows), _range(log_columns))):
                return [_merge(terms, None, log_rows, log_columns)]
        gathered: list[list[Term]] = []
        for term in terms:
            for group in gathered:
                if _near(term.log_rows, group[0].log_rows) and _near(term.log_columns, group[0].log_columns):
                    group.append(term)
                    break
            else:
                gathered.append([term])
        return [
            _merge(
                group,
                group[0][:2],
                torch.stack([t.log_rows for t in group]) - group[0].log_rows,
                torch.stack([t.log_columns for t in group]) - group[0].log_columns,
            )
            for group in gathered
        ]

    def _slots(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Return zeros for the wanted gradients; in a symmetric problem both sides share theirs."""
        inputs = self.log_kernel.inputs
        slots = [torch.zeros_like(v) if want else None for v, want in zip(inputs, wanted, strict=True)]
        if self.symmetric:
            slots[1], slots[3] = slots[0], slots[2]
        return slots


class Stored(Streamed):
    """The passes with every tile kept from its first computation: O(N M) memory, one product in all.

    All tiles stand in one tensor, one behind the other, which is saved for the gradient: exp(core) where exponents are
    moderate, else the core, and behind the cores of all tiles T where the kernel has a link.
    """

    recomputes: ClassVar[bool] = False
    summary: ClassVar[str] = "log K computed once and kept in tiles; exact gradient in one more pass"

    def __init__(
        self,
        geometry: Geometry,
        processes: Processes,
        saved: Sequence[Tensor] = (),
        operands: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(geometry, processes, saved, operands)
        self._linked = self.log_kernel.link is not None
        self._starts, self._entries = {}, 0
        for rows, columns in self._own_rectangles():
            self._starts[rows.start, columns.start] = self._entries
            self._entries += (rows.stop - rows.start) * (columns.stop - columns.start)
        self._saved, self._filled = tuple(saved), set(self._starts) if saved else set()
        self._memory = saved[0] if saved else _memory(_room(geometry, processes), self.row_bias)

    @cached_property
    def flat(self) -> bool:
        """True if all exponents of the core are bounded; for saved tiles, at the time they were filled.

        Embeddings that a compiled graph computes again for the gradient may differ by their rounding.
        """
        return bool(self._saved[1]) if self._saved else self.log_kernel.bound() <= self.limit

    def saved(self) -> list[Tensor]:
        """Return the tiles and whether they are exponentials."""
        return [self._memory, torch.tensor(self.flat)]

    @staticmethod
    def empty_saved(geometry: Geometry, processes: Processes) -> list[Tensor]:
        like = geometry.log_kernel.inputs[0]
        return [like.new_empty(_room(geometry, processes)), torch.empty((), dtype=torch.bool)]

    def _buffer(self, number: int, rows: slice, columns: slice) -> Tensor:
        """Return the place of a tile: of its T where the kernel has a link, else of its core."""
        return super()._buffer(number, rows, columns) if number > 0 else self._place(rows, columns, t=self._linked)

    def _place(self, rows: slice, columns: slice, *, t: bool = False) -> Tensor:
        height, width = rows.stop - rows.start, columns.stop - columns.start
        start = self._starts[rows.start, columns.start] + (self._entries if t else 0)
        return self._memory[start : start + height * width].view(height, width)

    def _tile(self, rows: slice, columns: slice, *, exponential: bool, with_t: bool = False) -> Tile:
        core, key = self._place(rows, columns), (rows.start, columns.start)
        t = self._place(rows, columns, t=True) if self._linked else None
        if key not in self._filled:
            tile = super()._tile(rows, columns, exponential=self.flat)
            for place, value in ((core, tile.core), (t, tile.t)):
                if place is not None and value is not None and value.data_ptr() != place.data_ptr():
                    place.copy_(value)
            self._filled.add(key)
        if self.flat and not exponential:
            core = core.log()
        if with_t and t is None:
            t = core.masked_fill(core == -torch.inf, 0)
        return Tile(rows, columns, core, t, self.symmetric and rows != columns)


def _room(geometry: Geometry, processes: Processes) -> int:
    """Return how many numbers the own tiles take at most, by a formula into which symbols for sizes may go."""
    (n, m), (height, width) = geometry.shape, TILE
    strips = -(-n // height)
    tiles = strips * -(-m // width)
    if geometry.symmetric:  # squares on the diagonal, and what is right of them in stretches of several squares
        squares = width // height
        tiles = strips + strips * (strips - 1) // (2 * squares) + (strips if squares > 1 else 0)
    own = -(-tiles // processes.size)
    room: int = torch.sym_min(own * height * width, n * m)  # type: ignore[assignment]
    return room if geometry.log_kernel.link is None else 2 * room


class _Ranges:
    """The least and the largest label of each stretch of rows and columns: most tiles hold no masked pair at sight."""

    def __init__(self, labels: tuple[Tensor, Tensor]) -> None:
        self.rows, self.columns = ([(int(p.amin()), int(p.amax())) for p in side.split(TILE[0])] for side in labels)

    def may_meet(self, rows: slice, columns: slice) -> bool:
        low, high = self.rows[rows.start // TILE[0]]
        stretches = self.columns[columns.start // TILE[0] : -(-columns.stop // TILE[0])]
        return any(low <= most and least <= high for least, most in stretches)


class _LogSum:
    """log sum exp of rows that arrive in pieces, with a running maximum; all minus infinity stays minus infinity."""

    def __init__(self, empty: Tensor) -> None:
        self.maximum, self.total = empty, torch.zeros_like(empty)

    def add(self, rows: slice, values: Tensor) -> None:
        """Add a piece, (rows, k); it is overwritten."""
        old = self.maximum[rows]
        new = torch.maximum(old, values.amax(1))
        shift = new.masked_fill(new == -torch.inf, 0)
        fresh = values.sub_(shift[:, None]).exp_().sum(1)
        self.total[rows] = self.total[rows] * torch.exp(old - shift) + fresh
        self.maximum[rows] = new

    def value(self) -> Tensor:
        return self.maximum + self.total.log()


class _Group(NamedTuple):
    """Terms whose exponents lie near each other: exp(S + A + B) o (U V^T), one exponential for all of them.

    Attributes:
        base: A, (N,), and B, (M,); None where they are zero and exp(core) itself is meant.
        row_factors: U^T, (k, N).
        column_factors: V^T, (k, M).
    """

    base: tuple[Tensor, Tensor] | None
    row_factors: Tensor
    column_factors: Tensor

    def weight(self, tile: Tile, passes: Streamed) -> Tensor:
        """Return its part of W on a tile; in a symmetric problem that of the mirror image is transposed and added."""
        rows, columns = tile.rows, tile.columns
        u, v = self.row_factors, self.column_factors
        out = passes._buffer(1, rows, columns)
        if self.base is None and passes.symmetric:
            both = torch.cat([u[:, rows], v[:, rows]]), torch.cat([v[:, columns], u[:, columns]])
            return _outer(*both, out).mul_(tile.core)
        if self.base is None:
            return _outer(u[:, rows], v[:, columns], out).mul_(tile.core)
        a, b = self.base
        weight = _exponential(tile.core, a[rows], b[columns], passes, rows, columns)
        weight.mul_(_outer(u[:, rows], v[:, columns], out))
        if passes.symmetric:
            image = _exponential(tile.core, b[rows], a[columns], passes, rows, columns)
            weight.addcmul_(image, _outer(v[:, rows], u[:, columns], out))
        return weight


def _merge(terms: Sequence[Term], base: tuple[Tensor, Tensor] | None, log_rows: Tensor, log_columns: Tensor) -> _Group:
    """Return the group of some terms from their exponents less the base, (k, N) and (k, M), which are overwritten."""
    row_factors, column_factors = log_rows.exp_(), log_columns.exp_()
    for k, term in enumerate(terms):
        side = row_factors if term.axis == "rows" else column_factors
        side[k] *= term.weight
    return _Group(base, row_factors, column_factors)


def _outer(left: Tensor, right: Tensor, out: Tensor | None) -> Tensor:
    """Return the sum of k outer products, (k, n) and (k, m) to (n, m); a matrix product is slow at very small k."""
    if len(left) > _THIN:
        return torch.mm(left.T, right, out=out)
    total = torch.mul(left[0, :, None], right[0], out=out)
    for row, column in zip(left[1:], right[1:], strict=True):
        total.addcmul_(row[:, None], column)
    return total


_THIN = 6


_SPARE: list[np.ndarray] = []
"""Memory of tiles that nobody needs any more, one piece at most."""


def _memory(size: int, like: Tensor) -> Tensor:
    """Return memory for so many numbers, in the precision and on the device of another tensor.

    On a CPU it is what the last call has left, if that suffices: to touch new memory for the first time takes a quarter
    of the time of the product that is written there.
    """
    if like.device.type != "cpu" or size == 0:
        return like.new_empty(size)
    needed = size * like.element_size()
    piece = _SPARE.pop() if _SPARE else None
    if piece is None or piece.nbytes < needed:
        piece = np.empty(needed, dtype=np.uint8)
    # The tensor holds this view of the piece, and with it ends; without that the piece is freed like any memory.
    loan = piece[:needed]
    weakref.finalize(loan, _leave, piece).atexit = False
    return torch.frombuffer(loan, dtype=like.dtype)


def _leave(piece: np.ndarray) -> None:
    """Leave memory to the next call; the larger piece stays."""
    if piece.nbytes <= STORED_BYTES and not (_SPARE and _SPARE[0].nbytes >= piece.nbytes):
        _SPARE[:] = [piece]


def _stretches(start: int, stop: int, length: int) -> Iterator[slice]:
    """Yield the stretches that cover a range."""
    for first in range(start, stop, length):
        yield slice(first, min(first + length, stop))


def _range(values: Tensor) -> tuple[float, float]:
    """Return the middle between the least and the largest value, and how far they lie from it."""
    low, high = (float(v) for v in values.aminmax())
    return (high + low) / 2, (high - low) / 2


def _near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().amax() <= REACH)


def _with_mirror(tile: Tile) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the tile and, where it stands for its transpose as well, that."""
    yield tile.rows, tile.columns, tile.core
    if tile.mirrored:
        yield tile.columns, tile.rows, tile.core.T


def _exponential(
    core: Tensor, log_rows: Tensor, log_columns: Tensor, passes: Streamed, rows: slice, columns: slice
) -> Tensor:
    """Return exp(S + A + B) on a tile; A and B are those of the tile already."""
    log_rows = log_rows + passes.row_bias[rows]
    return (core + log_rows[:, None]).add_(log_columns + passes.column_bias[columns]).exp_()
