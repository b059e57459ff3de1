"""Intervals of means and differences against theory and simulation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import digamma, polygamma
from scipy.stats import ttest_1samp, ttest_ind, ttest_rel

from contraport.comparison.seed_intervals import (
    MAX_PREDICTED_SEEDS,
    DifferenceAndVariances,
    VarianceEstimate,
    estimate_moderated_variance,
    estimate_paired_difference,
    estimate_variance_prior,
    mean_interval_over_seeds,
    predict_num_seeds_to_decide,
)
from contraport.metrics.intervals import Difference

random = np.random.default_rng(0)


def test_seed_interval_is_students_t() -> None:
    values = random.normal(0.9, 0.01, 5)
    expected = ttest_1samp(values, 0).confidence_interval()
    assert mean_interval_over_seeds(values) == pytest.approx((expected.low, expected.high))


def test_interval_for_one_seed_uses_items() -> None:
    items = (np.arange(400) % 4 > 0)[None]
    low, high = mean_interval_over_seeds(np.array([0.75]), items)
    assert low == pytest.approx(0.75 - 1.96 * (0.75 * 0.25 / 400) ** 0.5, abs=0.005)
    assert low < 0.75 < high
    assert mean_interval_over_seeds(np.array([0.75])) is None, "expected no interval without seeds and items"


def test_difference_without_items_is_a_paired_t_test() -> None:
    values, others = random.normal(0.9, 0.01, 6), random.normal(0.88, 0.01, 6)
    expected = ttest_rel(values, others).confidence_interval()
    result = estimate_paired_difference(values, others).with_interval()
    assert result is not None
    assert result[1:] == pytest.approx((expected.low, expected.high))


def test_bonferroni_widens_intervals() -> None:
    values, others = random.normal(0.9, 0.01, 6), random.normal(0.88, 0.01, 6)
    one, many = (estimate_paired_difference(values, others).with_interval(comparisons=number) for number in (1, 20))
    assert one is not None
    assert many is not None
    assert one.value == many.value
    assert many.high - many.low > 1.5 * (one.high - one.low)
    expected = ttest_rel(values, others).confidence_interval(1 - 0.05 / 20)
    assert many[1:] == pytest.approx((expected.low, expected.high))


def test_prior_of_equal_variances_is_certain() -> None:
    true, freedom = 0.04, 3
    result = [VarianceEstimate(true * float(random.chisquare(freedom)) / freedom, freedom) for _ in range(2000)]
    prior_variance = estimate_variance_prior(result)
    assert prior_variance is not None
    assert prior_variance.variance == pytest.approx(true, rel=0.1)
    assert prior_variance.dof > 30


def test_prior_of_different_variances_is_less_certain() -> None:
    true_dof, freedom = 6.0, 4
    true = 0.04 * true_dof / random.chisquare(true_dof, 4000)
    result = [VarianceEstimate(float(one * random.chisquare(freedom) / freedom), freedom) for one in true]
    prior_variance = estimate_variance_prior(result)
    assert prior_variance is not None
    assert prior_variance.dof == pytest.approx(true_dof, rel=0.25)
    assert prior_variance.variance == pytest.approx(0.04, rel=0.1)


def test_prior_agrees_with_smyth() -> None:
    """Section 6.2: mean and variance of the logarithms determine both parameters of the prior."""
    variances, freedom = np.array([0.2, 1.0, 9.0, 40.0, 0.05]), np.array([1.0, 2.0, 4.0, 2.0, 8.0])
    result = estimate_variance_prior([VarianceEstimate(*one) for one in zip(variances, freedom, strict=True)])
    assert result is not None
    logs = np.log(variances) - digamma(freedom / 2) + np.log(freedom / 2)
    assert polygamma(1, result.dof / 2) == pytest.approx(np.cov(logs) - polygamma(1, freedom / 2).mean())
    assert np.log(result.variance) == pytest.approx(logs.mean() + digamma(result.dof / 2) - np.log(result.dof / 2))


def test_zero_variance_is_raised_to_a_share_of_the_median() -> None:
    others = [VarianceEstimate(one, 2.0) for one in (1.0, 1.0, 500.0)]
    none, small = (estimate_variance_prior([VarianceEstimate(least, 2.0), *others]) for least in (0.0, 0.01))
    assert none == small


def test_no_prior_from_two_or_zero_variances() -> None:
    assert estimate_variance_prior([VarianceEstimate(1.0, 2), VarianceEstimate(1.0, 2)]) is None
    assert estimate_variance_prior([VarianceEstimate(0.0, 2)] * 4) is None
    assert estimate_variance_prior([VarianceEstimate(0.0, 2), *[VarianceEstimate(1.0, 2)] * 4]) is not None


def test_interval_for_one_seed_uses_the_prior() -> None:
    prior_variance = VarianceEstimate(0.01**2, 4.0)
    result = estimate_paired_difference(np.array([0.92]), np.array([0.9]), prior=prior_variance).with_interval()
    assert result is not None
    assert result.high - result.value == pytest.approx(2.776 * 0.01, rel=1e-3)
    low, high = mean_interval_over_seeds(np.array([0.9]), prior=prior_variance)
    assert (high - low) / 2 == pytest.approx(2.776 * 0.01, rel=1e-3)


def test_no_interval_for_one_seed_without_items() -> None:
    assert estimate_paired_difference(np.array([0.9]), np.array([0.8])).with_interval() is None


def test_no_interval_for_equal_values() -> None:
    same = np.array([0.9, 0.9])
    assert mean_interval_over_seeds(same) is None
    assert estimate_paired_difference(same, same - 0.1).with_interval() is None
    assert mean_interval_over_seeds(same, prior=VarianceEstimate(1e-4, 3.0)) is not None


def test_intervals_cover_at_their_level() -> None:
    """Equal rows with variance over seeds and items: about 95% of the intervals contain zero."""
    rows, seeds, items, draws = 12, 2, 200, 60
    contains_zero = []
    for _ in range(draws):
        common = random.normal(0, 1, (1, 1, items)) + random.normal(0, 0.05, (1, seeds, 1))
        values = common + random.normal(0, 0.5, (rows, 1, items)) + random.normal(0, 0.05, (rows, seeds, 1))
        means = values.mean(axis=2)
        prior_variance = estimate_variance_prior(
            filter(None, (estimate_moderated_variance(one - means[0]) for one in means[1:]))
        )
        for one in range(1, rows):
            result = estimate_paired_difference(
                means[one], means[0], values[one], values[0], prior=prior_variance
            ).with_interval()
            assert result is not None
            contains_zero.append(not result.is_significant)
    assert 0.93 <= np.mean(contains_zero) <= 0.995


def test_seed_and_item_variances_add_as_in_welch() -> None:
    """Variances of the means over seeds and over items add up as in Welch's test."""
    seeds, number, comparisons = 5, 40, 6
    items = random.normal(0.8, 0.3, (seeds, number)) + random.normal(0, 0.05, (seeds, 1))
    others = random.normal(0.7, 0.3, (seeds, number))
    differences = items - others
    welch = ttest_ind(differences.mean(axis=1), differences.mean(axis=0), equal_var=False)
    low, high = welch.confidence_interval(1 - 0.05 / comparisons)
    result = estimate_paired_difference(items.mean(axis=1), others.mean(axis=1), items, others).with_interval(
        comparisons=comparisons
    )
    assert result is not None
    assert result.value == pytest.approx(differences.mean())
    assert result.high - result.low == pytest.approx(high - low)
    assert result.high - result.value == pytest.approx(result.value - result.low)


def _build_difference(seeds: int, items: int = 1000) -> DifferenceAndVariances:
    """Return a difference of 1 point with variance over seeds and items, of which some are the same for all seeds."""
    random = np.random.default_rng(7)
    shared_by_seeds = random.choice([-1.0, 0.0, 1.0], items, p=[0.002, 0.996, 0.002])
    per_seed = random.choice([-1.0, 0.0, 1.0], (seeds, items), p=[0.03, 0.93, 0.04])
    result = shared_by_seeds + per_seed + random.normal(0, 0.02, (seeds, 1))
    return estimate_paired_difference(result.mean(axis=1), np.zeros(seeds), result, np.zeros_like(result))


def test_predicted_interval_agrees_with_more_seeds() -> None:
    few, many = _build_difference(20), _build_difference(200)
    predicted, interval = few.with_interval(assumed_num_seeds=200), many.with_interval()
    assert predicted is not None
    assert interval is not None
    assert predicted.value == few.value
    assert predicted.high - predicted.low == pytest.approx(interval.high - interval.low, rel=0.15)
    without_prediction = few.with_interval()
    assert without_prediction is not None
    assert predicted.high - predicted.low < 0.6 * (without_prediction.high - without_prediction.low)


def test_predicted_seeds_are_the_fewest_that_decide() -> None:
    few = estimate_paired_difference(np.array([0.91, 0.90, 0.93]), np.array([0.9, 0.9, 0.9]))

    def is_decided(differences: Sequence[Difference]) -> bool:
        return differences[0].is_significant

    seeds = predict_num_seeds_to_decide(is_decided, [few], comparisons=3)
    least, with_one_seed_less = (
        few.with_interval(comparisons=3, assumed_num_seeds=number) for number in (seeds, seeds - 1)
    )
    assert least is not None
    assert with_one_seed_less is not None
    assert least.is_significant
    assert not with_one_seed_less.is_significant
    same = np.repeat(np.array([[1.0, -1.0, 1.0]]), 4, axis=0)
    assert (
        predict_num_seeds_to_decide(
            is_decided, [estimate_paired_difference(same.mean(axis=1), np.zeros(4), same, 0 * same)], comparisons=3
        )
        == MAX_PREDICTED_SEEDS
    )


def test_predicted_seeds_are_at_least_the_largest_present_number() -> None:
    """If one of two differences has fewer seeds, the prediction is at least the larger number."""
    few = estimate_paired_difference(np.array([0.91, 0.93]), np.array([0.9, 0.9]))
    many = estimate_paired_difference(0.95 + 0.001 * np.arange(9.0), np.full(9, 0.9))

    def is_decided(differences: Sequence[Difference]) -> bool:
        return all(one.is_significant for one in differences)

    alone = predict_num_seeds_to_decide(is_decided, [few], comparisons=1)
    assert alone == 5
    assert not is_decided([one for one in (few.with_interval(), many.with_interval()) if one is not None])
    assert predict_num_seeds_to_decide(is_decided, [few, many], comparisons=1) == 9


def test_item_variance_is_not_negative() -> None:
    items = np.where((np.arange(50) % 2 == np.arange(2)[:, None]), 1.0, -1.0) + np.array([[0.1], [0.2]])
    result = estimate_paired_difference(items.mean(axis=1), np.zeros(2), items, 0 * items)
    for seeds in (2, 100):
        interval = result.with_interval(assumed_num_seeds=seeds)
        assert interval is not None
        by_seeds = DifferenceAndVariances(result.value, 2, result.seed_variance, None).with_interval(
            assumed_num_seeds=seeds
        )
        assert by_seeds is not None
        assert interval[1:] == pytest.approx(by_seeds[1:])
