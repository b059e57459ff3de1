import numpy as np
import pytest
from scipy import stats
from tests.errors import raises_usage_error

from contraport.metrics.intervals import (
    Difference,
    MetricResult,
    bootstrap_interval,
    bootstrap_means,
    bootstrap_means_kept_below_1,
    bootstrap_means_limited_to_0_1,
    bootstrap_medians,
    draw_bootstrap_values,
    paired_bootstrap_difference,
    percentile_interval,
    sqrt_bootstrap_means,
)
from contraport.metrics.probes import bootstrap_r_squared, squared_calibration_pseudovalues

RANDOM = np.random.default_rng(0)
HITS = RANDOM.random(400) < 0.8


def compute_paired_difference(first, second, **settings):
    draws = draw_bootstrap_values({"first": first, "second": second}, **settings)
    return paired_bootstrap_difference((first.value, draws["first"]), (second.value, draws["second"]))


def test_interval_of_a_mean_agrees_with_scipy() -> None:
    values = RANDOM.gamma(2, size=300)
    reference = stats.bootstrap(
        (values,), np.mean, n_resamples=4_000, method="percentile", rng=np.random.default_rng(1)
    )
    result = bootstrap_interval(MetricResult(values), resamples=4_000)
    width = reference.confidence_interval.high - reference.confidence_interval.low
    assert result.low == pytest.approx(reference.confidence_interval.low, abs=0.05 * width)
    assert result.high == pytest.approx(reference.confidence_interval.high, abs=0.05 * width)


def test_paired_interval_agrees_with_scipy() -> None:
    other = HITS ^ (RANDOM.random(400) < 0.1)
    reference = stats.bootstrap(
        (HITS.astype(float) - other,), np.mean, n_resamples=4_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    result = compute_paired_difference(MetricResult(HITS), MetricResult(other), resamples=4_000)
    assert result.value == pytest.approx(HITS.mean() - other.mean())
    assert (result.low, result.high) == pytest.approx((reference.low, reference.high), abs=0.005)


def test_paired_difference_may_be_significant_if_intervals_overlap() -> None:
    better = HITS | (np.arange(400) < 30)
    single = [bootstrap_interval(MetricResult(hits)) for hits in (better, HITS)]
    assert single[0].low < single[1].high
    assert compute_paired_difference(MetricResult(better), MetricResult(HITS)).is_significant


def test_bonferroni_interval_agrees_with_quantiles_of_more_draws() -> None:
    gains = RANDOM.normal(0.1, 1, 500)
    result_of_gains, result_of_zeros = MetricResult(gains), MetricResult(np.zeros(500))
    draws = draw_bootstrap_values({"gains": result_of_gains, "zeros": result_of_zeros}, resamples=20_000)
    result = paired_bootstrap_difference((result_of_gains.value, draws["gains"]), (0.0, draws["zeros"]), comparisons=10)
    expected = percentile_interval(draws["gains"], 1 - 0.05 / 10)
    assert (result.low, result.high) == pytest.approx(tuple(expected), abs=0.005)
    assert result.high - result.low > 1.3 * (
        compute_paired_difference(result_of_gains, result_of_zeros).high
        - compute_paired_difference(result_of_gains, result_of_zeros).low
    )


def test_bonferroni_intervals_are_stretched_about_the_median() -> None:
    """The draws are skewed and the value is not their median; non-finite draws are ignored."""
    draws = np.r_[np.nan, np.arange(101.0) ** 2, np.inf]
    zeros = np.zeros(len(draws))
    assert paired_bootstrap_difference((0.0, draws), (7.0, zeros))[1:] == pytest.approx(
        np.quantile(draws[1:-1], [0.025, 0.975])
    )
    low, high = np.quantile(draws[1:-1], [0.025, 0.975])
    factor = stats.norm.ppf(1 - 0.05 / 5 / 2) / stats.norm.ppf(0.975)
    result = paired_bootstrap_difference((0.0, draws), (7.0, zeros), comparisons=5)
    assert result == pytest.approx((-7.0, 2_500 - factor * (2_500 - low), 2_500 + factor * (high - 2_500)))


def test_difference_is_significant_if_its_interval_excludes_zero() -> None:
    assert [Difference(0.0, *ends).is_significant for ends in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (0.0, 0.1))] == [
        True,
        True,
        False,
        False,
    ]


def test_intervals_cover_at_their_level() -> None:
    covered = [
        ends.low <= 0.7 <= ends.high
        for seed in range(300)
        for ends in [bootstrap_interval(MetricResult(np.random.default_rng(seed).random(200) < 0.7), resamples=300)]
    ]
    assert 0.9 < np.mean(covered) < 0.98


@pytest.mark.parametrize(("shift", "error"), [(0.0, 0.0), (0.1, 0.1)])
def test_calibration_error_is_unbiased_and_its_interval_covers(shift: float, error: float) -> None:
    """Confidences are calibrated or 0.1 too high; the uncorrected error would be 0.05 in the first case."""
    squares, covered = [], []
    for seed in range(120):
        random = np.random.default_rng(seed)
        confidence = random.uniform(0.4, 0.99, 400)
        gaps = squared_calibration_pseudovalues(np.stack([confidence, random.random(400) < confidence - shift], axis=1))
        low, high = bootstrap_interval(MetricResult(gaps, sqrt_bootstrap_means), resamples=150)
        squares.append(gaps.mean())
        covered.append(low <= error <= high)
    assert np.mean(squares) == pytest.approx(error**2, abs=4 * np.std(squares) / 120**0.5)
    assert np.mean(covered) > 0.9


def test_intervals_are_determined_by_the_seed() -> None:
    first, second, third = (bootstrap_interval(MetricResult(HITS), seed=seed) for seed in (0, 0, 1))
    assert first == second != third


@pytest.mark.parametrize("statistic", [bootstrap_means, bootstrap_medians, sqrt_bootstrap_means, bootstrap_r_squared])
def test_counts_of_items_are_equivalent_to_repeated_items(statistic) -> None:
    pairs = np.stack([RANDOM.random(40), RANDOM.random(40) < 0.7], axis=1)
    items = pairs[:, 0] if statistic in (bootstrap_means, sqrt_bootstrap_means) else pairs
    counts = RANDOM.integers(0, 3, size=(5, 40)).astype(float)
    repeated = [MetricResult(np.repeat(items, row.astype(int), axis=0), statistic).value for row in counts]
    assert statistic(items, counts) == pytest.approx(repeated)


def test_r_squared_does_not_depend_on_the_offset_of_the_numbers() -> None:
    """Targets such as seconds since 1970 are far from zero, with a small variance."""
    pairs = RANDOM.normal(size=(50, 2)) @ [[1.0, 0.9], [0.0, 0.3]]
    near, far = (
        bootstrap_interval(MetricResult(pairs + shift, bootstrap_r_squared), resamples=50) for shift in (0.0, 1e7)
    )
    assert far == pytest.approx(near, rel=1e-6)
    assert np.isnan(bootstrap_r_squared(np.array([[0.0, 7.0], [1.0, 7.0]]), np.ones((1, 2)))).all()


def test_is_mean_of_items() -> None:
    """`compare` averages the saved values per item only for such a statistic."""
    items = RANDOM.uniform(0.1, 0.8, (40, 2))
    for statistic in (
        bootstrap_means,
        bootstrap_means_kept_below_1,
        bootstrap_means_limited_to_0_1,
        sqrt_bootstrap_means,
        bootstrap_medians,
        bootstrap_r_squared,
    ):
        result_of_gains = MetricResult(items if statistic is bootstrap_r_squared else items[:, 0], statistic)
        assert result_of_gains.is_mean_of_items == (
            result_of_gains.value == pytest.approx(result_of_gains.item_values.mean())
        ), statistic


def test_median_agrees_with_numpy() -> None:
    for items in (RANDOM.random(7), RANDOM.random(8), RANDOM.integers(1, 9, size=(6, 2))):
        assert MetricResult(items, bootstrap_medians).value == np.median(items, axis=0).mean()


def test_result_with_columns_is_the_mean_of_its_columns() -> None:
    """Each column is also a result of its own, with the same bootstrap draws."""
    hits = RANDOM.random((50, 3)) < [0.2, 0.5, 0.9]
    whole = MetricResult(hits, column_names=("a to b", "b to a", "a to c"))
    parts = whole.results_by_column()
    assert whole.value == pytest.approx(np.mean([part.value for part in parts.values()]))
    draws = draw_bootstrap_values({"whole": whole, **parts}, resamples=20)
    assert draws["whole"] == pytest.approx(np.mean([draws[part] for part in parts], axis=0))
    assert MetricResult(hits).results_by_column() == {}


def test_draws_do_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = draw_bootstrap_values({"a": MetricResult(HITS)}, resamples=50)["a"]
    monkeypatch.setattr("contraport.metrics.intervals._MAX_COUNTS_IN_MEMORY", 1_000)
    assert np.array_equal(whole, draw_bootstrap_values({"a": MetricResult(HITS)}, resamples=50)["a"])


def test_interval_of_equal_items_has_zero_width() -> None:
    assert percentile_interval(draw_bootstrap_values({"": MetricResult(np.ones(50))})[""]) == (1, 1)


def test_rejects_results_with_different_numbers_of_items() -> None:
    with raises_usage_error("results.shape", [399, 400]):
        compute_paired_difference(MetricResult(HITS), MetricResult(HITS[:-1]))
