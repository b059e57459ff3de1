import numpy as np
import pytest
from scipy import stats

from contraport.errors import UsageError
from contraport.metrics.intervals import (
    Difference,
    MetricResult,
    bounded_bootstrap_mean,
    clipped_bootstrap_mean,
    interval,
    mean,
    median,
    paired_bootstrap_difference,
    percentile_interval,
    resampled,
    root_mean,
)
from contraport.metrics.probes import r_squared, squared_calibration_terms

RANDOM = np.random.default_rng(0)
HITS = RANDOM.random(400) < 0.8


def paired(first, second, **settings):
    draws = resampled({"first": first, "second": second}, **settings)
    return paired_bootstrap_difference((first.value, draws["first"]), (second.value, draws["second"]))


def test_the_interval_of_a_mean_is_that_of_scipy() -> None:
    values = RANDOM.gamma(2, size=300)
    peer = stats.bootstrap((values,), np.mean, n_resamples=4_000, method="percentile", rng=np.random.default_rng(1))
    found = interval(MetricResult(values), resamples=4_000)
    width = peer.confidence_interval.high - peer.confidence_interval.low
    assert found.low == pytest.approx(peer.confidence_interval.low, abs=0.05 * width)
    assert found.high == pytest.approx(peer.confidence_interval.high, abs=0.05 * width)


def test_the_paired_interval_is_that_of_scipy() -> None:
    other = HITS ^ (RANDOM.random(400) < 0.1)
    peer = stats.bootstrap(
        (HITS.astype(float) - other,), np.mean, n_resamples=4_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    found = paired(MetricResult(HITS), MetricResult(other), resamples=4_000)
    assert found.value == pytest.approx(HITS.mean() - other.mean())
    assert (found.low, found.high) == pytest.approx((peer.low, peer.high), abs=0.005)


def test_pairing_tells_differences_that_the_intervals_of_each_do_not() -> None:
    better = HITS | (np.arange(400) < 30)
    apart = [interval(MetricResult(hits)) for hits in (better, HITS)]
    assert apart[0].low < apart[1].high
    assert paired(MetricResult(better), MetricResult(HITS)).is_significant


def test_of_several_comparisons_the_interval_is_as_wide_as_more_draws_say() -> None:
    gains = RANDOM.normal(0.1, 1, 500)
    finding, nothing = MetricResult(gains), MetricResult(np.zeros(500))
    draws = resampled({"gains": finding, "nothing": nothing}, resamples=20_000)
    found = paired_bootstrap_difference((finding.value, draws["gains"]), (0.0, draws["nothing"]), comparisons=10)
    expected = percentile_interval(draws["gains"], 1 - 0.05 / 10)
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.005)
    assert found.high - found.low > 1.3 * (paired(finding, nothing).high - paired(finding, nothing).low)


def test_for_several_comparisons_the_ends_move_away_from_the_median() -> None:
    """Of draws that are skewed, whatever the number itself is; draws without a number are none."""
    draws = np.r_[np.nan, np.arange(101.0) ** 2, np.inf]
    none = np.zeros(len(draws))
    assert paired_bootstrap_difference((0.0, draws), (7.0, none))[1:] == pytest.approx(
        np.quantile(draws[1:-1], [0.025, 0.975])
    )
    low, high = np.quantile(draws[1:-1], [0.025, 0.975])
    further = stats.norm.ppf(1 - 0.05 / 5 / 2) / stats.norm.ppf(0.975)
    found = paired_bootstrap_difference((0.0, draws), (7.0, none), comparisons=5)
    assert found == pytest.approx((-7.0, 2_500 - further * (2_500 - low), 2_500 + further * (high - 2_500)))


def test_a_difference_is_sure_above_and_below_zero() -> None:
    assert [Difference(0.0, *ends).is_significant for ends in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1), (0.0, 0.1))] == [
        True,
        True,
        False,
        False,
    ]


def test_intervals_cover_as_often_as_they_say() -> None:
    covered = [
        ends.low <= 0.7 <= ends.high
        for seed in range(300)
        for ends in [interval(MetricResult(np.random.default_rng(seed).random(200) < 0.7), resamples=300)]
    ]
    assert 0.9 < np.mean(covered) < 0.98


@pytest.mark.parametrize(("shift", "error"), [(0.0, 0.0), (0.1, 0.1)])
def test_the_calibration_error_is_not_biased_and_its_interval_covers(shift: float, error: float) -> None:
    """Of confidences that are right, or too high by a tenth everywhere; the plain error would be .05 in the first."""
    squares, covered = [], []
    for seed in range(120):
        random = np.random.default_rng(seed)
        confidence = random.uniform(0.4, 0.99, 400)
        gaps = squared_calibration_terms(np.stack([confidence, random.random(400) < confidence - shift], axis=1))
        low, high = interval(MetricResult(gaps, root_mean), resamples=150)
        squares.append(gaps.mean())
        covered.append(low <= error <= high)
    assert np.mean(squares) == pytest.approx(error**2, abs=4 * np.std(squares) / 120**0.5)
    assert np.mean(covered) > 0.9


def test_a_seed_is_an_interval() -> None:
    first, second, third = (interval(MetricResult(HITS), seed=seed) for seed in (0, 0, 1))
    assert first == second != third


@pytest.mark.parametrize("statistic", [mean, median, root_mean, r_squared])
def test_counts_are_items_that_are_repeated(statistic) -> None:
    pairs = np.stack([RANDOM.random(40), RANDOM.random(40) < 0.7], axis=1)
    items = pairs[:, 0] if statistic in (mean, root_mean) else pairs
    counts = RANDOM.integers(0, 3, size=(5, 40)).astype(float)
    repeated = [MetricResult(np.repeat(items, row.astype(int), axis=0), statistic).value for row in counts]
    assert statistic(items, counts) == pytest.approx(repeated)


def test_what_is_told_of_numbers_does_not_depend_on_where_they_begin() -> None:
    """As seconds since 1970 of one afternoon do, far from zero."""
    pairs = RANDOM.normal(size=(50, 2)) @ [[1.0, 0.9], [0.0, 0.3]]
    near, far = (interval(MetricResult(pairs + shift, r_squared), resamples=50) for shift in (0.0, 1e7))
    assert far == pytest.approx(near, rel=1e-6)
    assert np.isnan(r_squared(np.array([[0.0, 7.0], [1.0, 7.0]]), np.ones((1, 2)))).all()


def test_what_is_kept_of_each_item_is_what_the_number_is_the_mean_of() -> None:
    """Others read the items of such a finding as those of a mean, as `compare` does."""
    items = RANDOM.uniform(0.1, 0.8, (40, 2))
    for statistic in (mean, bounded_bootstrap_mean, clipped_bootstrap_mean, root_mean, median, r_squared):
        finding = MetricResult(items if statistic is r_squared else items[:, 0], statistic)
        assert finding.is_mean == (finding.value == pytest.approx(finding.items.mean())), statistic


def test_the_median_is_numpys() -> None:
    for items in (RANDOM.random(7), RANDOM.random(8), RANDOM.integers(1, 9, size=(6, 2))):
        assert MetricResult(items, median).value == np.median(items, axis=0).mean()


def test_a_finding_of_parts_is_their_mean() -> None:
    """Each column is a finding by itself, under the same draws of items."""
    hits = RANDOM.random((50, 3)) < [0.2, 0.5, 0.9]
    whole = MetricResult(hits, parts=("a to b", "b to a", "a to c"))
    parts = whole.by_part()
    assert whole.value == pytest.approx(np.mean([part.value for part in parts.values()]))
    draws = resampled({"whole": whole, **parts}, resamples=20)
    assert draws["whole"] == pytest.approx(np.mean([draws[part] for part in parts], axis=0))
    assert MetricResult(hits).by_part() == {}


def test_the_draws_do_not_depend_on_how_many_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = resampled({"a": MetricResult(HITS)}, resamples=50)["a"]
    monkeypatch.setattr("contraport.metrics.intervals._COUNTS_AT_ONCE", 1_000)
    assert np.array_equal(whole, resampled({"a": MetricResult(HITS)}, resamples=50)["a"])


def test_items_that_all_agree_have_no_width() -> None:
    assert percentile_interval(resampled({"": MetricResult(np.ones(50))})[""]) == (1, 1)


def test_unequal_numbers_of_items_are_told() -> None:
    with pytest.raises(UsageError, match=r"as many items in each, got \[399, 400\]"):
        paired(MetricResult(HITS), MetricResult(HITS[:-1]))
