"""Largest products in tiles against all at once; nearest neighbors by cells against exact ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from contraport._utils import vector_search
from contraport._utils.vector_search import (
    MAX_CELL_ROWS,
    MIN_COMPARED_ROWS_PER_QUERY,
    CellSearch,
    mean_top_products,
    scale_rows_lazily_if_large,
    select_rows,
    top_indices,
    top_products_and_indices,
)
from contraport.engine import normalize


def make_search(values: torch.Tensor, rows: torch.Tensor) -> CellSearch:
    return CellSearch(values, rows, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("count", [1, 7, 300])
@pytest.mark.parametrize("max_keys", [300, 299])
def test_average_and_positions_of_the_largest_products(
    count: int, max_keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_search, "MAX_TILE_KEYS", max_keys)
    monkeypatch.setattr(vector_search, "MAX_TILE_PRODUCTS", 3 * 300)
    generator = torch.Generator().manual_seed(0)
    queries, keys = torch.randn(40, 5, generator=generator), torch.randn(300, 5, generator=generator)
    products = queries @ keys.T
    values, positions = products.topk(count, dim=1)
    torch.testing.assert_close(mean_top_products(queries, keys, count), values.mean(dim=1))
    assert torch.equal(top_indices(products, count), positions)


def test_finds_most_of_the_nearest_rows_and_only_rows_searched() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(40, 16, generator=generator)
    values = centers[torch.arange(12_000) % 40] + 0.5 * torch.randn(12_000, 16, generator=generator)
    values = F.normalize(values, dim=1)
    rows = torch.arange(0, 12_000, 2)
    result = make_search(values, rows).nearest_row_indices(values[:500], 10)
    exact = rows[(values[:500] @ values[rows].T).topk(10, dim=1).indices]
    assert bool((result % 2 == 0).all())
    shared = (result[:, :, None] == exact[:, None]).any(2)
    assert float(shared.float().mean()) > 0.9
    similarity = (values[:500, None] * values[result]).sum(2)
    assert bool((similarity.diff(dim=1) <= 1e-6).all())
    assert torch.equal(result, make_search(values, rows).nearest_row_indices(values[:500], 10))


def test_rows_normalized_on_read_give_the_same_neighbors(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(3_000, 8, generator=torch.Generator().manual_seed(0))
    copied = scale_rows_lazily_if_large(values, normalize)
    monkeypatch.setattr(vector_search, "MAX_NORMALIZED_COPY_VALUES", 0)
    read: list[int] = []

    def record_and_normalize(rows: torch.Tensor) -> torch.Tensor:
        read.append(len(rows))
        return normalize(rows)

    computed = scale_rows_lazily_if_large(values, record_and_normalize)
    assert not read
    for name, value in (("MAX_TILE_PRODUCTS", 4_000), ("MAX_TILE_KEYS", 200), ("MIN_COMPARED_ROWS_PER_QUERY", 300)):
        monkeypatch.setattr(vector_search, name, value)
    monkeypatch.setattr(vector_search, "MAX_CELL_ROWS", 300)
    exact = [top_products_and_indices(keys[:50], keys, 7) for keys in (computed, copied)]
    assert all(map(torch.equal, *exact))
    rows = torch.arange(0, 3_000, 2)
    result, expected = make_search(computed, rows), make_search(copied, rows)
    assert torch.equal(result.nearest_row_indices(computed, 7), expected.nearest_row_indices(copied, 7))
    nearest = result.top_products_and_indices(computed, 7, 400), expected.top_products_and_indices(copied, 7, 400)
    assert all(map(torch.equal, *nearest))
    assert max(read) <= 600  # rows of 4,000 products, or of the cells compared with a query
    positions = torch.tensor([4, 0])
    assert torch.equal(select_rows(computed, rows)[positions], select_rows(copied, rows)[positions])


@pytest.mark.parametrize("min_compared", [10, 700, 3_000])
def test_each_query_is_compared_with_the_rows_of_its_own_nearest_cells(
    monkeypatch: pytest.MonkeyPatch, min_compared: int
) -> None:
    monkeypatch.setattr(vector_search, "MAX_TILE_PRODUCTS", 7 * MAX_CELL_ROWS)
    generator = torch.Generator().manual_seed(1)
    values = F.normalize(torch.randn(6_000, 8, generator=generator), dim=1)
    rows = torch.arange(0, 6_000, 2)
    search, queries = make_search(values, rows), values[1:40:2]
    products, result = search.top_products_and_indices(queries, 10, min_compared)
    for number, query in enumerate(queries):
        order = (search._centers @ query).argsort(descending=True, stable=True).tolist()
        compared = torch.cat([search._cells[cell] for cell in order])
        ends = torch.tensor([len(search._cells[cell]) for cell in order]).cumsum(0)
        before = int(ends[(ends < min_compared).sum()])
        largest, places = (values[compared[:before]] @ query).topk(10)
        assert torch.equal(result[number], compared[places])
        torch.testing.assert_close(products[number], largest)
        starts = ends - torch.tensor([len(search._cells[cell]) for cell in order])
        where = (compared == result[number][:, None]).long().argmax(1)
        needed = starts[torch.searchsorted(ends, where, right=True)]
        assert torch.equal(search.count_rows_in_nearer_cells(queries, result)[number], needed)
        assert bool((needed < min_compared).all())


def test_few_rows_are_all_compared() -> None:
    values = F.normalize(torch.randn(MIN_COMPARED_ROWS_PER_QUERY, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    rows = torch.arange(MIN_COMPARED_ROWS_PER_QUERY)
    result = make_search(values, rows).nearest_row_indices(values, 5)
    assert torch.equal(result.sort().values, (values @ values.T).topk(5, dim=1).indices.sort().values)


def test_equal_rows_are_split_into_cells_of_bounded_size() -> None:
    values = F.normalize(torch.eye(3).repeat_interleave(torch.tensor([20_000, 5_000, 7]), 0), dim=1)
    search = make_search(values, torch.arange(len(values)))
    assert int(search._sizes.max()) <= MAX_CELL_ROWS
    compared = [len(rows) for rows in search._iter_candidate_rows_by_cell()]
    assert min(compared) >= MIN_COMPARED_ROWS_PER_QUERY
    assert max(compared) < MIN_COMPARED_ROWS_PER_QUERY + MAX_CELL_ROWS
    result = search.nearest_row_indices(values[[0, 20_000, 25_000]], 5)
    assert bool((values[result].argmax(2) == torch.arange(3)[:, None]).all())


@pytest.mark.parametrize("keys", [5, 64, 1_000])
@pytest.mark.parametrize("count", [1, 20])
def test_largest_products_in_tiles_equal_those_at_once(monkeypatch: pytest.MonkeyPatch, keys: int, count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, values = torch.randn(37, 4, generator=generator), torch.randn(300, 4, generator=generator)
    monkeypatch.setattr(vector_search, "MAX_TILE_KEYS", keys)
    monkeypatch.setattr(vector_search, "MAX_TILE_PRODUCTS", 400)
    products, positions = top_products_and_indices(queries, values, count)
    expected = (queries @ values.T).topk(count, dim=1)
    assert torch.equal(positions, expected.indices)
    assert torch.allclose(products, expected.values, atol=1e-6)
