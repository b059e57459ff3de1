import multiprocessing
import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.errors import raises_usage_error

from contraport import distributed
from contraport.data import Dataset, LocalBatchOffset, build_loader, from_arrays, load, local_batch_offset
from contraport.errors import UsageError


@pytest.fixture
def dataset():
    return from_arrays(np.arange(20.0).reshape(10, 2), labels=np.arange(10))


def order(batches):
    return torch.cat([batch.ids for batch in batches]).tolist()


def test_items_labels_and_ids_stay_together(dataset):
    for batch in build_loader(dataset, 3, shuffle=True, seed=4):
        assert torch.equal(batch.views[0][:, 0], 2.0 * batch.ids)
        assert torch.equal(batch.labels, batch.ids)


def test_the_order_depends_on_seed_and_epoch_alone(dataset):
    torch.manual_seed(1)
    first, second = build_loader(dataset, 3, shuffle=True, seed=5), build_loader(dataset, 3, shuffle=True, seed=5)
    torch.manual_seed(2)
    assert order(first) == order(first) == order(second)
    second.batch_sampler.set_epoch(1)
    assert order(first) != order(second)
    assert sorted(order(second)) == list(range(10))
    assert order(build_loader(dataset, 3, shuffle=True, seed=6)) != order(first)


def test_order_does_not_use_the_global_generator(dataset):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    batches = build_loader(dataset, 3, shuffle=True, seed=0)
    assert len(batches.dataset) == 10
    assert torch.equal(torch.rand(3), expected)


def test_the_last_batch_may_be_dropped(dataset):
    assert [len(batch.ids) for batch in build_loader(dataset, 4)] == [4, 4, 2]
    assert [len(batch.ids) for batch in build_loader(dataset, 4, drop_last=True)] == [4, 4]
    assert [len(batch.ids) for batch in build_loader(dataset, 400)] == [10]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_epoch_can_start_at_any_batch(dataset, num_workers):
    expected = [batch.ids.tolist() for batch in build_loader(dataset, 3, shuffle=True, seed=5)]
    batches = build_loader(dataset, 3, shuffle=True, seed=5, num_workers=num_workers)
    batches.batch_sampler.begin_at(epoch=0, batch=2)
    assert [batch.ids.tolist() for batch in batches] == expected[2:]
    assert len(batches) == 4
    batches.batch_sampler.set_epoch(1)
    assert sorted(order(batches)) == list(range(10))


def test_batches_before_the_first_are_not_fetched(dataset, monkeypatch):
    fetched = []
    monkeypatch.setattr(type(dataset), "__getitems__", lambda self, positions: fetched.extend(positions))
    batches = build_loader(dataset, 3)
    batches.batch_sampler.begin_at(epoch=0, batch=2)
    list(batches)
    assert fetched == [6, 7, 8, 9]


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_processes_share_each_batch(dataset, monkeypatch, processes):
    expected = [batch.ids.tolist() for batch in build_loader(dataset, 7, shuffle=True, seed=5)]
    parts, starts = [], []
    for rank in range(processes):
        monkeypatch.setattr(distributed, "current_processes", lambda rank=rank: (rank, processes))
        parts.append(
            [batch.ids.tolist() for batch in build_loader(dataset, 7, shuffle=True, seed=5, split_over_processes=True)]
        )
        starts.append(local_batch_offset(7).start)
        assert local_batch_offset(7).global_batch_size == 7
        assert order(build_loader(dataset, 7, shuffle=True, seed=5)) == list(chain.from_iterable(expected))
    for batch, together in zip(expected, zip(*parts, strict=True), strict=True):
        assert list(chain.from_iterable(together)) == batch
        assert max(map(len, together)) - min(map(len, together)) <= 1
    sizes = [len(part[0]) for part in parts]
    assert starts == [sum(sizes[:rank]) for rank in range(processes)]


def test_reads_the_deprecated_keyword_and_attribute_of_split_batches(dataset):
    with pytest.warns(FutureWarning, match="split_over_processes"):
        loader = build_loader(dataset, 3, shared=True)
    with pytest.warns(FutureWarning, match="split_over_processes"):
        assert loader.batch_sampler.shared


def test_a_split_batch_has_an_item_for_each_process(dataset, monkeypatch):
    monkeypatch.setattr(distributed, "current_processes", lambda: (0, 4))
    with raises_usage_error("batch_size.too_small", "3"):
        build_loader(dataset, 3, split_over_processes=True)


def test_data_in_memory_have_no_workers(dataset):
    assert build_loader(dataset, 4).num_workers == 0


@pytest.mark.parametrize(
    ("settings", "code_and_values"),
    [
        ({"batch_size": 11, "drop_last": True}, ("batch_size.too_large", "10", "arrays", "11")),
        ({"batch_size": 0}, ("batch_size.invalid",)),
        ({"batch_size": -2}, ("batch_size.invalid",)),
        ({"batch_size": 2.5}, ("batch_size.invalid",)),
        ({"batch_size": 2, "seed": -1}, ("seed.invalid",)),
        ({"batch_size": 2, "num_workers": -1}, ("num_workers.invalid",)),
    ],
)
def test_rejects_numbers_out_of_range(dataset, settings, code_and_values):
    with raises_usage_error(*code_and_values):
        build_loader(dataset, **settings)


def test_workers_are_limited_by_available_cores(dataset, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5}, raising=False)
    assert build_loader(dataset, 5, num_workers=2).num_workers == 2
    with raises_usage_error("num_workers.invalid", "100000"):
        build_loader(dataset, 5, num_workers=100_000)


@dataclass(frozen=True)
class UnreadableViews:
    """Store of views that cannot be read."""

    shapes: tuple[tuple[int, ...], ...] = ((2,),)
    is_in_memory: bool = False

    def __len__(self):
        return 4

    def fetch_views(self, positions):
        raise UsageError("data: 3.png could be read before and cannot be now")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_errors_in_workers_are_raised_unchanged(num_workers):
    dataset_with_unreadable_views = Dataset(UnreadableViews(), name="lost", split="train")
    with raises_usage_error("data.invalid", "3"):
        list(build_loader(dataset_with_unreadable_views, 2, num_workers=num_workers))


def test_workers_end_when_the_loader_is_closed(tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(tmp_path / f"{number}.png")
    before = set(multiprocessing.active_children())
    batches = build_loader(load(tmp_path), 1, num_workers=1)
    next(iter(batches))
    assert set(multiprocessing.active_children()) - before
    batches.close()
    assert not set(multiprocessing.active_children()) - before
    assert len(list(batches)) == 3


def test_deprecated_names_of_an_offset_warn() -> None:
    with pytest.warns(FutureWarning, match="global_batch_size"):
        offset = LocalBatchOffset(start=1, total=3)  # type: ignore[call-arg]
    with pytest.warns(FutureWarning, match="global_batch_size"):
        assert offset.total == 3  # type: ignore[attr-defined]
