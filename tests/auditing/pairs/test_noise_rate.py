from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.errors import raises_usage_error

from contraport.auditing.pairs.noise_rate import area_under_roc_curve, estimate_noise_rate, estimate_pair_fdrs


def draw_scores(
    rate: float, seed: int, *, items: int = 2_000, gap: float = 3.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw scores of pairs, a mask of the mismatched pairs, and scores of known mismatches."""
    random = np.random.default_rng(seed)
    wrong = np.arange(items) < rate * items
    return np.where(wrong, random.normal(0, 1, items), random.normal(gap, 1, items)), wrong, random.normal(0, 1, 400)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.2, 0.4, 0.6])
def test_rate_is_accurate_and_covered_by_its_interval(rate: float) -> None:
    result = [estimate_noise_rate(*draw_scores(rate, seed)[::2]) for seed in range(20)]
    assert np.mean([one.rate for one in result]) == pytest.approx(rate, abs=0.02)
    covered = [one.interval[0] - 0.005 <= rate <= one.interval[1] + 0.005 for one in result]
    assert np.mean(covered) >= 0.85


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("transform", [np.exp, np.cbrt, lambda s: np.round(s, 1)], ids=["exp", "cbrt", "rounded"])
def test_rate_depends_on_the_order_of_scores_only(transform: Callable[[np.ndarray], np.ndarray], rate: float) -> None:
    scores, _, mismatched = draw_scores(rate, 1)
    assert estimate_noise_rate(transform(scores), transform(mismatched)).rate == pytest.approx(
        estimate_noise_rate(scores, mismatched).rate, abs=0.02
    )


@pytest.mark.parametrize("gap", [3.0, 4.5])
@pytest.mark.parametrize("spread", [0.7, 1.0, 1.3])
def test_few_mismatches_suffice_if_scores_are_separated(gap: float, spread: float) -> None:
    """An estimate from a fixed quantile, the lowest 40 % of the mismatches, would have an error of 0.045 at any gap."""
    errors = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        wrong, good = random.normal(0, 1, 560), random.normal(gap, spread, 840)
        errors.append(estimate_noise_rate(np.r_[wrong, good], random.normal(0, 1, 200)).rate - 0.4)
    assert np.sqrt(np.mean(np.square(errors))) < 0.042
    assert abs(np.mean(errors)) < 0.035


def estimate_by_plain_bootstrap(
    scores: np.ndarray, mismatched: np.ndarray, draws: int = 1_500
) -> tuple[float, tuple[float, float]]:
    """Compute Storey's estimate and its interval by a bootstrap with explicit resampling."""
    random = np.random.default_rng(7)
    parts = np.linspace(0.4, 0.9, 11)

    def estimates(pairs: np.ndarray, wrong: np.ndarray) -> np.ndarray:
        marks = np.quantile(wrong, parts, method="higher")
        below = [(values[:, None] <= marks).mean(axis=0) for values in (pairs, wrong)]
        return np.minimum(below[0] / below[1], 1.0)

    result = estimates(scores, mismatched)
    drawn = np.stack(
        [
            estimates(random.choice(scores, len(scores)), random.choice(mismatched, len(mismatched)))
            for _ in range(draws)
        ]
    )
    best = np.square(drawn - result.min()).mean(axis=0).argmin()
    low, high = np.quantile(drawn[:, best], (0.025, 0.975))
    return float(result[best]), (float(low), float(high))


@pytest.mark.parametrize(
    ("rate", "gap", "known", "digits"),
    [(0.3, 2.5, 150, None), (0.3, 8.0, 60, None), (1.0, 3.0, 150, None), (0.4, 3.0, 150, 0)],
    ids=["near", "apart", "all are wrong", "ties"],
)
def test_agrees_with_a_plain_bootstrap(rate: float, gap: float, known: int, digits: int | None) -> None:
    scores, _, mismatched = draw_scores(rate, 3, items=500, gap=gap)
    mismatched = mismatched[:known]
    if digits is not None:
        scores, mismatched = scores.round(digits), mismatched.round(digits)
    expected, (low, high) = estimate_by_plain_bootstrap(scores, mismatched)
    result = estimate_noise_rate(scores, mismatched)
    assert result.rate == pytest.approx(expected)
    assert result.interval == pytest.approx((low, high), abs=0.15 * (high - low))


def test_seed_changes_the_interval_only() -> None:
    scores, _, mismatched = draw_scores(0.3, 0)
    first, again, other = (estimate_noise_rate(scores, mismatched, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first.interval != other.interval


def test_fresh_mismatches_underestimate_memorized_noise() -> None:
    """Memorized mismatches score above fresh ones, so the audit needs decoys that are trained on."""
    scores, wrong, fresh = draw_scores(0.4, 0, gap=5.0)
    scores = scores + np.where(wrong, 1.5, 0)
    assert estimate_noise_rate(scores, fresh).rate < 0.15
    assert estimate_noise_rate(scores, fresh + 1.5).rate == pytest.approx(0.4, abs=0.05)


def test_fdr_is_accurate_and_monotone() -> None:
    right_shares = []
    for seed in range(10):
        scores, wrong, mismatched = draw_scores(0.3, seed)
        values = estimate_pair_fdrs(scores, mismatched, 0.3)
        order = np.argsort(scores)
        assert (np.diff(values[order]) >= 0).all()
        flagged = values <= 0.1
        right_shares.append((~wrong[flagged]).mean())
    assert np.mean(right_shares) == pytest.approx(0.1, abs=0.05)


def test_area_under_curve_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import roc_auc_score

    random = np.random.default_rng(0)
    trained, fresh = random.integers(0, 5, 70), random.integers(0, 4, 50)
    truth = np.r_[np.ones(70), np.zeros(50)]
    assert area_under_roc_curve(trained, fresh) == pytest.approx(roc_auc_score(truth, np.r_[trained, fresh]))


def test_rate_is_at_most_one() -> None:
    """The pairs score below the known mismatches."""
    random = np.random.default_rng(0)
    result = estimate_noise_rate(random.normal(-1, 1, 300), random.normal(0, 1, 100))
    assert (result.rate, result.interval[1]) == (1, 1)


def test_rejects_missing_and_infinite_scores() -> None:
    with raises_usage_error("mismatch_scores.invalid", "0 of 0"):
        estimate_noise_rate(np.ones(3), np.array([]))
    with raises_usage_error("scores.invalid", "0 of 1"):
        estimate_noise_rate(np.array([np.nan]), np.ones(2))
