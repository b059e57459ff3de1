"""The three passes over all pairs, tile by tile: log-sum-exp, weighted sums, and the gradient.

Everything in contraport that costs O(N M) is one of these, over a geometry S = log K with its mask:

1. ``log_sum_exp``: log sum_j exp(S_ij + q_j) and log sum_i exp(S_ij + p_i);
2. ``weighted_sum``: sum_j exp(S_ij + A_i + B_j) v_j and sum_i exp(S_ij + A_i + B_j) u_i;
3. ``gradient``: the gradient of sum_ij W_ij S_ij for W = sum over terms of exp(S_ij + A_i + B_j) (u_i or v_j), given
   back on the inputs of the log-kernel; `held_total` is the same with W held fixed and log K's link left out.

A and B are added to S before the exponential is taken, and a running maximum follows each row and column, so that
nothing overflows and no sum underflows at any temperature. No tensor is larger than a tile, except the embeddings
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from contraport.engine.geometry import Geometry

TILE = 512
"""Rows and columns of a tile: large enough for a matrix product at full speed, small enough for the second-level
cache."""

REACH = 16.0
"""How far (in the exponent) a term may lie from its group's: e^{2 REACH} amplifies what has underflowed below e^-87."""


Tile: TypeAlias = tuple[Tensor, Tensor, object]
"""log K (minus infinity where masked), T, and what `LogKernel.pull` needs to know."""


class Term(NamedTuple):
    """One term of the gradient's weight, exp(S_ij + A_i + B_j) times u_i (axis ``"rows"``) or v_j (``"columns"``)."""

    log_rows: Tensor
    log_columns: Tensor
    axis: str
    weight: Tensor


class Passes:
    """The passes over one geometry, its tiles recomputed each time: O((N + M) d) memory.

    Args:
        geometry: the pairs.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry

    def _tile(self, rows: slice, columns: slice) -> Tile:
        return self.geometry.tile(rows, columns)

    def _tiles(self) -> Iterator[tuple[slice, slice, *Tile]]:
        n, m = self.geometry.shape
        for top in range(0, n, TILE):
            for left in range(0, m, TILE):
                rows, columns = slice(top, min(top + TILE, n)), slice(left, min(left + TILE, m))
                yield rows, columns, *self._tile(rows, columns)

    def log_sum_exp(self, over_columns: Tensor | None, over_rows: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return log sum_j exp(S_ij + q_j), (N,), and log sum_i exp(S_ij + p_i), (M,), in one pass.

        Args:
            over_columns: q, (M,), or None where the first is not wanted.
            over_rows: p, (N,), or None where the second is not wanted.
        """
        n, m = self.geometry.shape
        by_row = None if over_columns is None else _LogSum(over_columns.new_full((n,), -torch.inf))
        by_column = None if over_rows is None else _LogSum(over_rows.new_full((m,), -torch.inf))
        for rows, columns, s, _, _ in self._tiles():
            if by_row is not None and over_columns is not None:
                by_row.add(rows, s + over_columns[columns])
            if by_column is not None and over_rows is not None:
                by_column.add(columns, s.T + over_rows[rows])
        return None if by_row is None else by_row.value(), None if by_column is None else by_column.value()

    def weighted_sum(self, terms: Sequence[Term]) -> list[Tensor]:
        """Return for each term the sum of its weight over its own axis, in one pass.

        A term on ``"rows"`` gives sum_i exp(S_ij + A_i + B_j) u_i, (M,); one on ``"columns"`` gives the sum over j,
        (N,).
        """
        sums = [torch.zeros_like(t.log_columns if t.axis == "rows" else t.log_rows) for t in terms]
        for rows, columns, s, _, _ in self._tiles():
            for term, total in zip(terms, sums, strict=True):
                e = _exponential(s, term.log_rows[rows], term.log_columns[columns])
                if term.axis == "rows":
                    total[columns] += term.weight[rows] @ e
                else:
                    total[rows] += e @ term.weight[columns]
        return sums

    def gradient(self, terms: Sequence[Term], wanted: Sequence[bool]) -> list[Tensor | None]:
        """Return the gradient of sum_ij W_ij S_ij on each wanted input of the log-kernel, W the sum of the terms."""
        log_kernel, gradients = self.geometry.log_kernel, self._zeros(wanted)
        groups = _collapse(terms)
        for rows, columns, s, t, memory in self._tiles():
            weight = groups[0].weight(s, rows, columns)
            for group in groups[1:]:
                weight += group.weight(s, rows, columns)
            if log_kernel.link is not None:
                weight *= log_kernel.link.derivative(t)
            log_kernel.pull(rows, columns, memory, weight, gradients)
        return gradients

    def held_total(
        self, log_rows: Tensor, log_columns: Tensor, wanted: Sequence[bool]
    ) -> tuple[Tensor, list[Tensor | None]]:
        """Return the total of exp(S_ij + A_i + B_j) T_ij and its gradient on each wanted input, the first factor
        held.
        """
        total, gradients = torch.zeros_like(log_rows[0]), self._zeros(wanted)
        for rows, columns, s, t, memory in self._tiles():
            weight = _exponential(s, log_rows[rows], log_columns[columns])
            total += (weight * t).sum()
            if any(wanted):
                self.geometry.log_kernel.pull(rows, columns, memory, weight, gradients)
        return total, gradients

    def _zeros(self, wanted: Sequence[bool]) -> list[Tensor | None]:
        inputs = self.geometry.log_kernel.inputs
        return [torch.zeros_like(v) if want else None for v, want in zip(inputs, wanted, strict=True)]


class StoredPasses(Passes):
    """The same passes with every tile of log K kept from its first computation: O(N M) memory, one product in all."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self._kept: dict[tuple[int, int], Tile] = {}

    def _tile(self, rows: slice, columns: slice) -> Tile:
        key = (rows.start, columns.start)
        if key not in self._kept:
            self._kept[key] = super()._tile(rows, columns)
        return self._kept[key]


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
    """Terms whose exponents lie near each other: exp(S + A + B) o (U V^T), one exponential for all of them."""

    log_rows: Tensor
    log_columns: Tensor
    row_factors: Tensor
    column_factors: Tensor

    def weight(self, s: Tensor, rows: slice, columns: slice) -> Tensor:
        """Return its part of W on a tile."""
        weight = _exponential(s, self.log_rows[rows], self.log_columns[columns])
        return weight.mul_(self.row_factors[rows] @ self.column_factors[columns].T)


def _collapse(terms: Sequence[Term]) -> list[_Group]:
    """Gather the terms into as few groups as their exponents allow; in ordinary training that is one.

    Each group takes its exponents from one of its own terms, where exp(S + A + B) is the weight of a softmax and at
    most 1.
    """
    gathered: list[list[Term]] = []
    for term in terms:
        for group in gathered:
            if _near(term.log_rows, group[0].log_rows) and _near(term.log_columns, group[0].log_columns):
                group.append(term)
                break
        else:
            gathered.append([term])
    return [_merge(group) for group in gathered]


def _near(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().amax() <= REACH)


def _merge(terms: Sequence[Term]) -> _Group:
    base = terms[0]
    row_factors = [torch.exp(t.log_rows - base.log_rows) for t in terms]
    column_factors = [torch.exp(t.log_columns - base.log_columns) for t in terms]
    for k, term in enumerate(terms):
        side = row_factors if term.axis == "rows" else column_factors
        side[k] = side[k] * term.weight
    return _Group(base.log_rows, base.log_columns, torch.stack(row_factors, 1), torch.stack(column_factors, 1))


def _exponential(s: Tensor, log_rows: Tensor, log_columns: Tensor) -> Tensor:
    return (s + log_rows[:, None]).add_(log_columns).exp_()
