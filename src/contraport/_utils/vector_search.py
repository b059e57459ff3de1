"""Exact or approximate nearest-neighbor search by inner products.

The approximate search divides the rows into clusters (cells) of bounded size. The approximate search is like an
inverted file (IVF): all rows of a cell are compared with the rows of the nearest cells in one matrix product. The time
is bounded by O(n c d) for `n` queries of width `d` and `c` compared rows, for any distribution of the rows: cells have
a maximum size, and equal rows are split among several cells. An inverted file, whose cells have no maximum size, is
quadratic among equal rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

MAX_CELL_ROWS = 512  # maximum number of rows of a cell
MIN_COMPARED_ROWS_PER_QUERY = 4_096  # minimum number of rows that a query is compared with; all rows if there are fewer
MAX_TILE_KEYS = 2**13  # maximum number of keys of a tile of an exact search

MAX_TILE_PRODUCTS = 2**21
"""Maximum number of products in memory at a time: larger tiles leave the cache of the processor."""

MAX_NORMALIZED_COPY_VALUES = 2**28
"""Maximum number of values of a matrix whose normalized copy is held in memory (1 GiB); rows of larger ones are
normalized when they are read."""


class ComputedRows:
    """Matrix ``(n, d)`` whose rows are computed when they are read.

    It is indexed like a tensor, and only the rows that are read are in memory.

    Args:
        compute_rows: returns the rows at given positions, int64 ``(b,)``, as a tensor ``(b, d)``.
        shape: ``(n, d)``.
        device: device of the rows.

    >>> doubled = ComputedRows(lambda rows: 2 * torch.eye(3)[rows], (3, 3))
    >>> doubled[torch.tensor([1])], doubled.select(torch.tensor([2, 0]))[:1]
    (tensor([[0., 2., 0.]]), tensor([[0., 0., 2.]]))
    """

    dtype = torch.float32

    def __init__(
        self, compute_rows: Callable[[Tensor], Tensor], shape: tuple[int, int], device: torch.device | str = "cpu"
    ) -> None:
        self._compute_rows = compute_rows
        self.shape = shape
        self.device = torch.device(device)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """Compute the rows with given indices, or those of a slice."""
        if isinstance(rows, slice):
            rows = torch.arange(*rows.indices(len(self)), device=self.device)
        return self._compute_rows(rows)

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the rows with given indices, like `torch.Tensor.index_select` with `dim` 0."""
        assert dim == 0
        return self._compute_rows(rows)

    def select(self, rows: Tensor) -> ComputedRows:
        """Select rows of the matrix, without computing them yet."""
        shape = len(rows), self.shape[1]
        return ComputedRows(lambda positions: self._compute_rows(rows[positions]), shape, self.device)


TensorOrComputedRows = Tensor | ComputedRows
"""Matrix ``(n, d)``, in memory or computed where rows are read."""


def select_rows(values: TensorOrComputedRows, rows: Tensor) -> TensorOrComputedRows:
    """Select rows of a matrix that is in memory or computed when read."""
    return values.select(rows) if isinstance(values, ComputedRows) else values[rows]


def scale_rows_lazily_if_large(values: Tensor, scale: Callable[[Tensor], Tensor]) -> TensorOrComputedRows:
    """Scale the rows of a matrix by a function, on access if the matrix is large.

    >>> scale_rows_lazily_if_large(torch.tensor([[3.0, 4.0]]), F.normalize)
    tensor([[0.6000, 0.8000]])
    """
    if values.numel() <= MAX_NORMALIZED_COPY_VALUES:
        blocks = values.split(max(1, MAX_TILE_PRODUCTS // values.shape[1]))
        # What is computed on the way to scaled rows takes as much memory as they do.
        return torch.cat(list(map(scale, blocks)))
    return ComputedRows(lambda rows: scale(values.index_select(0, rows)), (len(values), values.shape[1]), values.device)


def top_products_and_indices(
    queries: TensorOrComputedRows, keys: TensorOrComputedRows, count: int
) -> tuple[Tensor, Tensor]:
    """Return the largest inner products of each query, and the keys' indices.

    The keys are ``(n, d)``. The search is exact, tile by tile. Both results are ``(q, count)``, the largest first.

    >>> top_products_and_indices(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]), 2)
    (tensor([[2., 1.]]), tensor([[1, 2]]))
    """
    largest = torch.full((len(queries), count), -torch.inf, dtype=queries.dtype, device=queries.device)
    positions = torch.zeros_like(largest, dtype=torch.int64)
    height = max(1, MAX_TILE_PRODUCTS // min(len(keys), MAX_TILE_KEYS))
    for first in range(0, len(queries), height):
        part = slice(first, first + height)
        block, best, places = queries[part], largest[part], positions[part]
        for start in range(0, len(keys), MAX_TILE_KEYS):
            products = block @ keys[start : start + MAX_TILE_KEYS].T
            # Most tiles have no larger product for most queries, and a maximum takes a fraction of the time of topk.
            improved = (products.amax(dim=1) > best[:, -1]).nonzero().flatten()
            values, columns = products[improved].topk(min(count, products.shape[1]), dim=1)
            best[improved], order = torch.cat([best[improved], values], dim=1).topk(count, dim=1)
            places[improved] = torch.cat([places[improved], columns + start], dim=1).gather(1, order)
    return largest, positions


def mean_top_products(queries: Tensor, keys: Tensor, count: int) -> Tensor:
    """Return the mean of each query's `count` largest inner products, ``(q,)``.

    >>> mean_top_products(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [2.0, 0.0], [1.0, 1.0]]), 2)
    tensor([1.5000])
    """
    if queries.device.type != "cpu" or len(keys) > MAX_TILE_KEYS:
        return top_products_and_indices(queries, keys, count)[0].mean(dim=1)
    means = []
    for block in queries.split(max(1, MAX_TILE_PRODUCTS // len(keys))):
        products = (block @ keys.T).numpy()
        # On the CPU, NumPy partitions in a third of the time of topk, which finds the positions too.
        products.partition(len(keys) - count, axis=1)
        means.append(torch.from_numpy(products[:, len(keys) - count :].mean(axis=1)))
    return torch.cat(means)


def inner_products_of_all_row_pairs(rows: Tensor) -> Tensor:
    """Return the ``(n, n)`` matrix of the inner products of n rows.

    >>> inner_products_of_all_row_pairs(torch.tensor([[1.0, 2.0], [0.0, 3.0]]))
    tensor([[5., 6.],
            [6., 9.]])
    """
    if rows.device.type != "cpu":
        return rows @ rows.T
    values = rows.numpy()
    return torch.from_numpy(values @ values.T)  # NumPy computes one half of a symmetric product, torch both


def top_indices(products: Tensor, count: int) -> Tensor:
    """Return the column indices of each row's largest entries, the largest first.

    >>> top_indices(torch.tensor([[0.0, 3.0, 1.0, 2.0]]), 2)
    tensor([[1, 3]])
    """
    indices = _unordered_top_indices(products, count)
    return indices.gather(1, products.gather(1, indices).argsort(dim=1, descending=True))


def _unordered_top_indices(products: Tensor, count: int) -> Tensor:
    """Return the column indices of each row's largest entries, in any order."""
    width = products.shape[1]
    # On the CPU, NumPy partitions some thousand entries in a third of the time of topk.
    if products.device.type != "cpu" or width > 2**13:
        return products.topk(count, dim=1, sorted=False).indices
    return torch.from_numpy(
        np.argpartition(products.detach().numpy(), width - count, axis=1)[:, width - count :].copy()
    )


class CellSearch:
    """Approximate nearest-neighbor index of unit vectors, grouped in clusters (cells).

    Args:
        unit_vectors: the matrix, ``(n, d)``.
        searched_rows: indices of the rows to search, int64 ``(m,)``.
        generator: draws the samples that the cells are fitted to, on the CPU.

    >>> u = F.normalize(torch.randn(5_000, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    >>> search = CellSearch(u, torch.arange(0, 5_000, 2), torch.Generator().manual_seed(0))
    >>> search.nearest_row_indices(u[:3], 2)[:, 0].tolist()[::2]
    [0, 2]
    """

    def __init__(self, unit_vectors: TensorOrComputedRows, searched_rows: Tensor, generator: torch.Generator) -> None:
        self._values = unit_vectors
        self._cells = _split_into_cells(unit_vectors, searched_rows, generator)
        self._centers = F.normalize(torch.stack([unit_vectors[cell].mean(dim=0) for cell in self._cells]), dim=1)
        self._sizes = torch.tensor([len(cell) for cell in self._cells], device=unit_vectors.device)

    def nearest_row_indices(self, queries: TensorOrComputedRows, count: int) -> Tensor:
        """Return the indices of each query's `count` nearest rows, the nearest first.

        Args:
            queries: unit vectors, ``(q, d)``.
            count: number of rows, at most `MIN_COMPARED_ROWS_PER_QUERY` and the number of rows searched.
        """
        blocks = torch.arange(len(queries), device=queries.device).split(
            max(1, MAX_TILE_PRODUCTS // max(len(self._cells), queries.shape[1]))
        )
        cell_of_query = torch.cat([(queries[block] @ self._centers.T).argmax(dim=1) for block in blocks])
        nearest = torch.empty(len(queries), count, dtype=torch.int64, device=queries.device)
        order = cell_of_query.argsort(stable=True)
        sizes = cell_of_query.bincount(minlength=len(self._cells))
        for members, compared in zip(order.split(sizes.tolist()), self._iter_candidate_rows_by_cell(), strict=True):
            if len(members) > 0:
                others = self._values.index_select(0, compared)
                for part in members.split(MAX_TILE_PRODUCTS // len(compared)):
                    nearest[part] = compared[(queries[part] @ others.T).topk(count, dim=1).indices]
        return nearest

    def top_products_and_indices(
        self, queries: TensorOrComputedRows, count: int, min_compared: int
    ) -> tuple[Tensor, Tensor]:
        """Return the largest inner products and row indices from each query's nearest cells.

        Both are ``(q, count)``. Each query has its own nearest cells, which finds more of its neighbors among the same
        number of rows than the common candidates of a cell in `nearest_row_indices`, but takes more and smaller matrix
        products.

        Args:
            queries: unit vectors, ``(q, d)``.
            count: number of rows, at most `min_compared`.
            min_compared: minimum number of rows that a query is compared with, at most those searched.
        """
        largest = torch.full((len(queries), count), -torch.inf, dtype=queries.dtype, device=queries.device)
        least = largest[:, 0].clone()
        rows = torch.zeros_like(largest, dtype=torch.int64)
        for part in torch.arange(len(queries), device=queries.device).split(MAX_TILE_PRODUCTS // MAX_CELL_ROWS):
            block = queries[part]
            is_compared = self._count_rows_before_each_cell(block) < min_compared
            for cell, members in zip(self._cells, is_compared.T, strict=True):
                compared = part[members]
                products = block[members] @ self._values.index_select(0, cell).T
                improved = products.amax(dim=1) > least[compared]
                products, improved_queries = products[improved], compared[improved]
                columns = _unordered_top_indices(products, min(count, len(cell)))
                values = torch.cat([largest[improved_queries], products.gather(1, columns)], dim=1)
                order = _unordered_top_indices(values, count)
                values = values.gather(1, order)
                largest[improved_queries], least[improved_queries] = values, values.amin(dim=1)
                rows[improved_queries] = torch.cat([rows[improved_queries], cell[columns]], dim=1).gather(1, order)
        largest, order = largest.sort(dim=1, descending=True)
        return largest, rows.gather(1, order)

    def count_rows_in_nearer_cells(self, queries: Tensor, row_indices: Tensor) -> Tensor:
        """For each query and given row, count the rows in cells nearer to it than the row's cell.

        A cell is nearer if its center is. The row indices of each query, and the result, are int64 ``(q, k)``.
        """
        device, block_size = row_indices.device, MAX_TILE_PRODUCTS // MAX_CELL_ROWS
        cell_of_row = torch.zeros(len(self._values), dtype=torch.int64, device=device)
        cells = torch.arange(len(self._cells), device=device).repeat_interleave(self._sizes)
        cell_of_row[torch.cat(self._cells)] = cells
        blocks = zip(queries.split(block_size), row_indices.split(block_size), strict=True)
        return torch.cat([self._count_rows_before_each_cell(q).gather(1, cell_of_row[r]) for q, r in blocks])

    def _count_rows_before_each_cell(self, queries: Tensor) -> Tensor:
        """For each query and cell, count the rows of all cells that are nearer to the query."""
        order = (queries @ self._centers.T).argsort(dim=1, descending=True, stable=True)
        before = self._sizes[order].cumsum(dim=1) - self._sizes[order]
        return torch.empty_like(before).scatter_(1, order, before)

    def _iter_candidate_rows_by_cell(self) -> Iterator[Tensor]:
        """Yield, for each cell, the rows of this cell and its nearest cells."""
        for first in range(0, len(self._cells), MAX_CELL_ROWS):
            similarity = self._centers[first : first + MAX_CELL_ROWS] @ self._centers.T
            similarity.diagonal(offset=first).fill_(torch.inf)  # a cell is always its own nearest
            order = similarity.argsort(dim=1, descending=True, stable=True)
            before = self._sizes[order].cumsum(dim=1) - self._sizes[order]
            for cells, number in zip(
                order.tolist(), (before < MIN_COMPARED_ROWS_PER_QUERY).sum(dim=1).tolist(), strict=True
            ):
                yield torch.cat([self._cells[cell] for cell in cells[:number]])


class ApproximateSearch(NamedTuple):
    """Approximate search that compares enough rows to reach a required recall.

    Attributes:
        search: index of the keys.
        min_compared: minimum number of keys that a query is compared with.
        recall: share of the largest products that were found, measured on queries that did not choose `min_compared`.
        num_recall_queries: number of the queries by which the recall was measured.
    """

    search: CellSearch
    min_compared: int
    recall: float
    num_recall_queries: int

    def top_products_and_indices(self, queries: TensorOrComputedRows, count: int) -> tuple[Tensor, Tensor]:
        """Return the largest inner products of each query, and the keys' indices.

        Both are ``(q, count)``. The search is approximate: it can miss some of the largest.
        """
        return self.search.top_products_and_indices(queries, count, self.min_compared)


def build_approximate_search_if_faster(
    queries: TensorOrComputedRows,
    keys: TensorOrComputedRows,
    count: int,
    generator: torch.Generator,
    *,
    min_recall: float,
    sample_size: int,
) -> ApproximateSearch | None:
    """Build an approximate search, or return None if exact search is as fast.

    The number of compared keys is chosen by the exact neighbors of `sample_size` queries, and the recall is measured on
    as many others. None if half of the keys would be compared: an exact search is then as fast.

    Args:
        queries: unit vectors, ``(q, d)``, at least two.
        keys: unit vectors, ``(n, d)``.
        count: number of nearest keys, at most n.
        generator: draws the samples that the cells are fitted to, on the CPU.
        min_recall: share of the nearest keys to find.
        sample_size: maximum number of queries by which the number of compared keys is chosen.

    >>> u = F.normalize(torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    >>> seeded = torch.Generator().manual_seed(0)
    >>> found = build_approximate_search_if_faster(u, u, 5, seeded, min_recall=0.9, sample_size=50)
    >>> found.min_compared < 5_000, found.recall > 0.8, found.num_recall_queries
    (True, True, 50)
    """
    search = CellSearch(keys, torch.arange(len(keys), device=keys.device), generator)
    items = min(2 * sample_size, len(queries))
    sample = queries[torch.arange(items, device=queries.device) * len(queries) // items]
    products, exact = top_products_and_indices(sample, keys, count)
    needed = search.count_rows_in_nearer_cells(sample[::2], exact[::2]).flatten().sort().values
    compared = max(count, int(needed[math.ceil(min_recall * len(needed)) - 1]) + 1)
    if 2 * compared > len(keys):
        return None
    top_products = search.top_products_and_indices(sample[1::2], count, compared)[0]
    reached = top_products >= products[1::2, -1:] - 1e-6  # equal products differ by rounding
    return ApproximateSearch(search, compared, float(reached.float().mean()), len(reached))


def _split_into_cells(values: TensorOrComputedRows, row_indices: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Split rows into cells of at most `MAX_CELL_ROWS` by recursive k-means."""
    cells, parts = [], [row_indices]
    while parts:
        part = parts.pop()
        if len(part) <= MAX_CELL_ROWS:
            cells.append(part)
            continue
        # The time grows with the number of clusters; those that are too large are split again.
        number = min(64, math.ceil(2 * len(part) / MAX_CELL_ROWS))
        labels = _spherical_kmeans_labels(values, part, number, generator)
        sizes = labels.bincount(minlength=number)
        if int(sizes.max()) == len(part):  # equal rows
            cells.extend(part.split(MAX_CELL_ROWS))
        else:
            parts.extend(one for one in part[labels.argsort(stable=True)].split(sizes.tolist()) if len(one) > 0)
    return cells


def _spherical_kmeans_labels(
    values: TensorOrComputedRows, row_indices: Tensor, num_clusters: int, generator: torch.Generator
) -> Tensor:
    """Return the cluster of each row by spherical k-means, int64 ``(m,)``."""
    drawn = torch.randperm(len(row_indices), generator=generator)[: 32 * num_clusters].to(row_indices.device)
    sample = values[row_indices[drawn]]
    centers = sample[:num_clusters]  # the sample is in random order
    for _ in range(4):
        sums = torch.zeros_like(centers).index_add_(0, (sample @ centers.T).argmax(dim=1), sample)
        # A center without rows is left unchanged.
        centers = torch.where(sums.any(dim=1, keepdim=True), F.normalize(sums, dim=1), centers)
    blocks = row_indices.split(max(1, MAX_TILE_PRODUCTS // max(num_clusters, values.shape[1])))
    return torch.cat([(values[block] @ centers.T).argmax(dim=1) for block in blocks])
