"""Memories of embeddings: first-in-first-out queue and moving-average bank."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from contraport.training.step.embedding_memory import MovingAverageBank, Queue


@given(size=st.integers(1, 9), batches=st.lists(st.integers(1, 12), min_size=1, max_size=8))
def test_queue_contains_the_latest_embeddings(size: int, batches: list[int]) -> None:
    queue, seen = Queue(size, views=2, dimensions=1), []
    for count in batches:
        fresh = torch.arange(len(seen), len(seen) + count)
        queue.stage([fresh[:, None].float(), -fresh[:, None].float()], fresh)  # written only after the step
        assert sorted(queue.get_extra_negatives(0).ids.tolist()) == sorted(seen[-size:])
        queue.write_staged()
        seen += fresh.tolist()
        for view, sign in ((0, 1), (1, -1)):
            entries = queue.get_extra_negatives(view)
            assert sorted(entries.ids.tolist()) == seen[-size:]
            assert (sign * entries.embeddings.flatten()).tolist() == entries.ids.tolist()


def test_empty_queue_has_no_negatives() -> None:
    keys = torch.randn(3, 4)
    positives, negatives = Queue(5, views=1, dimensions=4).get_positives_and_negatives(0, keys, torch.arange(3))
    assert positives is keys
    assert negatives is None


def test_queue_state_round_trips() -> None:
    first = Queue(4, views=1, dimensions=2)
    first.write(torch.randn(6, 1, 2), torch.arange(6))
    second = Queue(4, views=1, dimensions=2)
    second.load_state_dict(first.state_dict())
    more = torch.randn(3, 1, 2), torch.arange(6, 9)
    first.write(*more)
    second.write(*more)
    assert torch.equal(first.embeddings, second.embeddings)
    assert second.get_extra_negatives(0).ids.tolist() == [8, 5, 6, 7]


def test_all_batches_of_a_step_are_written() -> None:
    queue = Queue(8, views=1, dimensions=1)
    for part in range(2):
        queue.stage([torch.full((2, 1), float(part))], torch.tensor([0, 1]))
    queue.write_staged()
    queue.write_staged()
    assert queue.get_extra_negatives(0).embeddings.flatten().tolist() == [0, 0, 1, 1]


def test_bank_averages_and_normalizes() -> None:
    torch.manual_seed(0)
    bank = MovingAverageBank(items=6, views=2, dimensions=4, num_negatives=5)
    before = bank.embeddings.clone()
    keys, ids = [7 * torch.randn(3, 4), torch.randn(3, 4)], torch.tensor([5, 0, 2])
    bank.stage(keys, ids)
    assert torch.equal(bank.embeddings, before)
    bank.write_staged()
    for view, key in enumerate(keys):
        expected = F.normalize(before[ids, view] / 2 + key / key.norm(dim=1, keepdim=True) / 2)
        torch.testing.assert_close(bank.embeddings[ids, view], expected)
    assert torch.equal(bank.embeddings[[1, 3, 4]], before[[1, 3, 4]])
    torch.testing.assert_close(bank.embeddings.norm(dim=2), torch.ones(6, 2))


def test_bank_returns_own_and_random_entries() -> None:
    bank = MovingAverageBank(items=6, views=2, dimensions=4, num_negatives=1000)
    ids = torch.tensor([3, 1])
    positives, negatives = bank.get_positives_and_negatives(1, torch.zeros(2, 4), ids)
    assert torch.equal(positives, bank.embeddings[ids, 1])
    assert negatives is not None
    assert torch.equal(negatives.embeddings, bank.embeddings[negatives.ids, 1])
    counts = torch.bincount(negatives.ids, minlength=6)
    assert counts.min() > 100  # all items are drawn equally often


def test_half_precision_keys_are_stored_in_single() -> None:
    queue = Queue(4, views=1, dimensions=2)
    queue.stage([torch.ones(2, 2, dtype=torch.bfloat16)], torch.arange(2))
    queue.write_staged()
    assert queue.get_extra_negatives(0).embeddings.dtype == torch.float32


@pytest.mark.parametrize("memory", [Queue(4, 1, 2), MovingAverageBank(4, 1, 2, 3)])
def test_memory_is_saved_in_checkpoints(memory: Queue | MovingAverageBank) -> None:
    assert "embeddings" in memory.state_dict()
