"""Intervals of means and differences: of the size that theory and simulation say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from contraport.comparing.statistics import over_seeds, paired, rest_of

random = np.random.default_rng(0)


def test_a_mean_over_seeds_has_students_interval() -> None:
    values = random.normal(0.9, 0.01, 5)
    expected = ttest_1samp(values, 0).confidence_interval()
    assert over_seeds(values) == pytest.approx((expected.low, expected.high))


def test_of_one_seed_the_items_tell() -> None:
    items = (np.arange(400) % 4 > 0)[None]
    low, high = over_seeds(np.array([0.75]), items)
    assert low == pytest.approx(0.75 - 1.96 * (0.75 * 0.25 / 400) ** 0.5, abs=0.005)
    assert low < 0.75 < high
    assert over_seeds(np.array([0.75])) == (0.75, 0.75)


def test_without_items_and_other_rows_a_difference_is_a_paired_t_test() -> None:
    values, others = random.normal(0.9, 0.01, 6), random.normal(0.88, 0.01, 6)
    expected = ttest_rel(values, others).confidence_interval()
    found = paired(values, others)
    assert found is not None
    assert found[1:] == pytest.approx((expected.low, expected.high))


def test_more_comparisons_make_an_interval_wider() -> None:
    values, others = random.normal(0.9, 0.01, 6), random.normal(0.88, 0.01, 6)
    one, many = (paired(values, others, comparisons=number) for number in (1, 20))
    assert one is not None
    assert many is not None
    assert one.value == many.value
    assert many.high - many.low > 1.5 * (one.high - one.low)
    expected = ttest_rel(values, others).confidence_interval(1 - 0.05 / 20)
    assert many[1:] == pytest.approx((expected.low, expected.high))


def test_what_a_seed_has_in_common_is_no_part_of_the_rest() -> None:
    seeds = random.normal(0, 0.1, 4)
    column = np.array([0.9, 0.8, 0.7])[:, None] + seeds
    rest = rest_of(column)
    assert rest is not None
    assert rest.variance == pytest.approx(0, abs=1e-15)
    assert rest.freedom == 6
    assert rest_of(column[:1]) is None
    assert rest_of(column[:, :1]) is None


def test_the_rest_is_the_variance_of_a_difference() -> None:
    many = random.normal(0, 0.1, (40, 500)) + random.normal(0, 1, 500)
    rest = rest_of(many)
    assert rest is not None
    assert rest.variance == pytest.approx(2 * 0.01, rel=0.05)


def test_one_seed_and_no_items_tell_nothing() -> None:
    assert paired(np.array([0.9]), np.array([0.8])) is None


def test_intervals_cover_what_they_should() -> None:
    """Rows that are equally good, whose seeds, items and both together spread: 95 in 100 intervals hold zero."""
    rows, seeds, items, draws = 4, 3, 200, 400
    held = 0
    for _ in range(draws):
        common = random.normal(0, 1, (1, 1, items)) + random.normal(0, 0.05, (1, seeds, 1))
        of_rows = random.normal(0, 0.5, (rows, 1, items)) + random.normal(0, 0.05, (rows, seeds, 1))
        values = common + of_rows
        means = values.mean(axis=2)
        found = paired(means[1], means[0], values[1], values[0], rest=rest_of(means))
        assert found is not None
        held += not found.is_sure
    assert 0.93 <= held / draws <= 1.0
