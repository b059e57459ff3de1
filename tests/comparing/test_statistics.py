"""Intervals of means and differences: of the size that theory and simulation say."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_rel

from contraport.comparing.statistics import VarianceEstimate, likely_spread, over_seeds, paired, spread_of

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


def test_variances_that_are_alike_are_known_by_all_of_them() -> None:
    true, freedom = 0.04, 3
    found = [VarianceEstimate(true * float(random.chisquare(freedom)) / freedom, freedom) for _ in range(2000)]
    likely = likely_spread(found)
    assert likely is not None
    assert likely.variance == pytest.approx(true, rel=0.1)
    assert likely.freedom > 30


def test_variances_that_differ_are_known_as_far_as_they_agree() -> None:
    prior, freedom = 6.0, 4
    true = 0.04 * prior / random.chisquare(prior, 4000)
    found = [VarianceEstimate(float(one * random.chisquare(freedom) / freedom), freedom) for one in true]
    likely = likely_spread(found)
    assert likely is not None
    assert likely.freedom == pytest.approx(prior, rel=0.25)
    assert likely.variance == pytest.approx(0.04, rel=0.1)


def test_of_two_variances_or_none_nothing_is_likely() -> None:
    assert likely_spread([VarianceEstimate(1.0, 2), VarianceEstimate(1.0, 2)]) is None
    assert likely_spread([VarianceEstimate(0.0, 2)] * 4) is None
    assert likely_spread([VarianceEstimate(0.0, 2), *[VarianceEstimate(1.0, 2)] * 4]) is not None


def test_of_one_seed_what_the_others_say_is_likely_counts() -> None:
    likely = VarianceEstimate(0.01**2, 4.0)
    found = paired(np.array([0.92]), np.array([0.9]), likely=likely)
    assert found is not None
    assert found.high - found.value == pytest.approx(2.776 * 0.01, rel=1e-3)
    low, high = over_seeds(np.array([0.9]), likely=likely)
    assert (high - low) / 2 == pytest.approx(2.776 * 0.01, rel=1e-3)


def test_one_seed_and_no_items_tell_nothing() -> None:
    assert paired(np.array([0.9]), np.array([0.8])) is None


def test_intervals_cover_what_they_should() -> None:
    """Rows that are equally good, whose seeds and items both spread: 95 in 100 intervals hold zero, and not all do."""
    rows, seeds, items, draws = 12, 2, 200, 60
    held = []
    for _ in range(draws):
        common = random.normal(0, 1, (1, 1, items)) + random.normal(0, 0.05, (1, seeds, 1))
        values = common + random.normal(0, 0.5, (rows, 1, items)) + random.normal(0, 0.05, (rows, seeds, 1))
        means = values.mean(axis=2)
        likely = likely_spread(filter(None, (spread_of(one - means[0]) for one in means[1:])))
        for one in range(1, rows):
            found = paired(means[one], means[0], values[one], values[0], likely=likely)
            assert found is not None
            held.append(not found.is_sure)
    assert 0.93 <= np.mean(held) <= 0.995
