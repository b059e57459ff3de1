from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.errors import raises_usage_error

from contraport._utils.text_bytes import tensor_to_texts
from contraport.auditing.pairs.paired_features import MIN_PAIRS, PairedFeatures, PairIndices
from contraport.auditing.pairs.synthetic_mismatches import (
    add_decoys,
    check_auditable_dataset,
    draw_groups_of_exchanging_sets,
    exchange_partners_across_sets,
)
from contraport.data import BatchOrder, Dataset, from_arrays

ITEMS = 300


def build_numbered_views() -> tuple[np.ndarray, np.ndarray]:
    return np.arange(ITEMS, dtype=np.float32)[:, None], np.arange(ITEMS, dtype=np.float32)[:, None] + 1_000


def build_presence_mask(items: int) -> torch.Tensor:
    present = torch.ones(ITEMS, 2, dtype=torch.bool)
    present[:items, 1] = False
    return present


@pytest.mark.parametrize(("items", "number"), [(300, 60), (1_500, 200), (5_000, 500), (30_000, 2_000)])
def test_number_of_decoys_is_bounded_and_drawn_by_seed(items: int, number: int) -> None:
    values = np.arange(items, dtype=np.float32)[:, None]
    first, repeated, other = (
        add_decoys(from_arrays((values, values)), seed=seed).decoy_pairs.first for seed in (0, 0, 1)
    )
    assert len(first) == len(set(first.tolist())) == number
    assert torch.equal(first, repeated)
    assert not torch.equal(first, other)


def test_decoy_combines_views_of_two_items() -> None:
    with_decoys = add_decoys(from_arrays(build_numbered_views(), labels=np.arange(ITEMS) % 3), seed=1)
    sources, partners = with_decoys.decoy_pairs
    assert len(with_decoys) == ITEMS
    assert len(sources) == 60
    assert sorted(sources.tolist()) == sorted(partners.tolist())
    assert (sources != partners).all()
    batch = with_decoys.__getitems__([7, ITEMS, ITEMS + 59])
    assert batch.views[0].flatten().tolist() == [7, sources[0], sources[59]]
    assert batch.views[1].flatten().tolist() == [1_007, 1_000 + partners[0], 1_000 + partners[59]]
    assert batch.ids.tolist() == [7, sources[0], sources[59]]
    assert batch.labels is not None
    assert batch.labels.tolist() == [7 % 3, sources[0] % 3, sources[59] % 3]
    assert add_decoys(from_arrays(build_numbered_views()), seed=1).decoy_pairs.first.equal(sources)


def test_decoy_texts_keep_their_width() -> None:
    texts = ["x" * (1 + row) for row in range(ITEMS)]
    with_decoys = add_decoys(from_arrays((build_numbered_views()[0], texts)), seed=1)
    for number in range(0, 60, 7):
        original, decoy = tensor_to_texts(with_decoys.__getitems__([3, ITEMS + number]).views[1])
        assert original == texts[3]
        assert decoy == texts[with_decoys.decoy_pairs.second[number]]


def test_rejects_data_that_are_not_pairs() -> None:
    x, y = build_numbered_views()
    incomplete = Dataset(from_arrays((x, y)).store, name="arrays", split="train", present=build_presence_mask(3))
    for dataset, code, values in (
        (from_arrays(np.ones((60, 2))), "data.views", ["arrays", 1]),
        (incomplete, "data.missing_views", ["arrays", f"3 of {ITEMS}", "0, 1, 2"]),
        (from_arrays((np.ones((49, 2)),) * 2), "data.too_few_pairs", [50, 49]),
        (from_arrays((x, np.ones((ITEMS, 2)))), "data.constant_view", ["view1", MIN_PAIRS, ITEMS]),
    ):
        with raises_usage_error(code, *values):
            check_auditable_dataset(dataset)


def test_batch_order_repeats_no_position_within_a_batch() -> None:
    order = BatchOrder(100, batch_size=20, shuffle=True, seed=3, drop_last=True)
    batches_of_all_items = list(order)
    positions = np.r_[np.arange(0, 60, 2), 130, 131]
    order.fill_epochs_by_repeating(positions)
    for epoch in range(5):
        order.set_epoch(epoch)
        batches = list(order)
        assert [len({*batch}) for batch in batches] == [20] * 5
        counts = np.bincount(np.concatenate(batches), minlength=132)[positions]
        assert counts.sum() == 100
        assert set(counts) <= {3, 4}
    order.begin_at(epoch=4, batch=2)
    assert list(order) == batches[2:]
    order.fill_epochs_by_repeating(None)
    order.begin_at(epoch=0, batch=0)
    assert list(order) == batches_of_all_items
    with raises_usage_error("batch_size.too_large", 5, 20):
        order.fill_epochs_by_repeating(np.arange(5))


@pytest.mark.parametrize("items", [50, 51])
def test_exchange_groups_are_drawn_by_seed(items: int) -> None:
    dataset = build_numbered_pairs(items)
    first, repeated, other = (
        exchange_partners_across_sets(draw_groups_of_exchanging_sets(dataset, seed=seed)).tolist() for seed in (0, 0, 1)
    )
    assert first == repeated != other


@pytest.mark.parametrize("items", [50, 51])
def test_partners_are_swapped_within_groups(items: int) -> None:
    groups = draw_groups_of_exchanging_sets(build_numbered_pairs(items), seed=2)
    partners = exchange_partners_across_sets(groups)
    assert sorted(partners.tolist()) == list(range(items))
    assert (partners != torch.arange(items)).all()
    for exchanging_sets in groups:
        group = torch.cat(exchanging_sets)
        assert set(partners[group].tolist()) == set(group.tolist())


def build_numbered_pairs(items: int) -> Dataset:
    return from_arrays((np.arange(items, dtype=np.float32)[:, None], np.arange(items, dtype=np.float32)[:, None]))


def test_neighbors_exclude_the_members_of_the_pair() -> None:
    values = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    first, second = torch.arange(60), torch.arange(60).roll(1)
    for near in PairedFeatures((values, values)).neighbors_by_view_excluding_members(PairIndices(first, second)):
        assert near.shape == (60, 15)
        assert not (near == first[:, None]).any()
        assert not (near == second[:, None]).any()
