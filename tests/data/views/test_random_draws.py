import math

import pytest
import torch
from tests.errors import raises_usage_error

from contraport.data import LocalBatchOffset
from contraport.data.views.random_draws import RandomDraws

MANY = torch.zeros(20_000, 3)


def draws(seed=0):
    torch.manual_seed(seed)
    return RandomDraws(len(MANY), None)


def test_uniform_numbers_fill_their_range_evenly():
    numbers = draws().uniform(2, 4, 3)
    assert numbers.shape == (20_000, 3)
    assert 2 <= numbers.min() < 2.01
    assert 3.99 < numbers.max() <= 4
    assert numbers.mean() == pytest.approx(3, abs=0.02)


def test_the_logarithm_of_log_uniform_numbers_is_uniform():
    numbers = draws().log_uniform(0.25, 4)
    assert 0.24 < numbers.min() < numbers.max() < 4.01
    assert numbers.log().mean() == pytest.approx(0, abs=0.03)
    assert numbers.log().var() == pytest.approx((2 * math.log(4)) ** 2 / 12, rel=0.03)


def test_rotations_are_angles_either_way():
    cosine, sine = draws().rotation_cos_sin(0.5, 1)
    angles = torch.atan2(sine, cosine)
    assert angles.shape == (20_000, 1)
    assert angles.abs().max() == pytest.approx(0.5, abs=0.001)
    assert angles.mean() == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("length", [1, 7, 100])
def test_spans_are_connected_and_take_half_their_largest_share_on_average(length):
    inside = draws().span_mask(0.6, length)
    edges = (inside[:, 1:] != inside[:, :-1]).sum(dim=1) + inside[:, 0].int() + inside[:, -1].int()
    assert inside.shape == (20_000, length)
    assert edges.max() <= 2
    assert inside.float().mean(dim=1).max() <= 0.6 + 1 / length
    if length > 1:
        assert inside.float().mean() == pytest.approx(0.3, abs=0.01)


def test_partners_are_any_item_of_the_batch():
    items = torch.arange(5.0)
    torch.manual_seed(0)
    partners = torch.stack([RandomDraws(len(items), None).random_batch_items(items) for _ in range(2000)])
    for place in range(5):
        assert (partners[:, place].long().bincount() / 2000 - 0.2).abs().max() < 0.04


@pytest.mark.parametrize(("start", "total"), [(-1, 4), (4, 4), (0, 0)])
def test_rejects_offsets_outside_of_the_batch(start, total):
    with raises_usage_error("start.invalid", "0"):
        LocalBatchOffset(start, total)


def test_rejects_items_beyond_the_batch():
    with raises_usage_error("offset.range", "4"):
        RandomDraws(2, LocalBatchOffset(3, 4))


def test_partners_in_other_processes_require_these_processes():
    items = torch.zeros(2, 3)
    with raises_usage_error("augment.incomplete_batch", "4"):
        RandomDraws(len(items), LocalBatchOffset(0, 4)).random_batch_items(items)
