"""Estimates of the share of wrong pairs and of false discovery rates.

The scores of the pairs are a mixture; the noise rate is the share of its wrong component. Known mismatches are a sample
of that component, and good pairs seldom score as low as most of them, so the lower part of the mismatches' scores gives
the rate. A smaller part contains fewer good pairs, which bias the estimate upward, but is estimated from fewer
mismatches. The part with the least bootstrap error is taken; the smallest estimate of all parts stands for the truth,
as good pairs can only add to it.

This requires mismatches that are scored like wrong pairs. Pairs drawn anew after training are not: a network memorizes
wrong pairs, which then score higher. So an online audit trains on decoys, and a cross-fit only scores pairs
that its encoder was not trained on.

Source: Storey (2002), A direct approach to false discovery rates: the estimate of section 3, with the part chosen as in
section 9, and the scores of known mismatches in place of p-values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contraport.errors import check
from contraport.seeding import numpy_generator

MISMATCH_QUANTILES_TRIED_AS_THRESHOLDS = np.arange(0.4, 0.91, 0.05)
"""Quantiles of the mismatch scores that are tried as thresholds; below lower ones there are too few mismatches."""

MIN_SEPARATION_AUC = 0.87
"""Minimum AUC of right pairs against known mismatches for the noise rate to be reliable: it was .90 or more where the
rate was right, and .85 or less where right pairs were counted as wrong."""

NUM_BOOTSTRAP_DRAWS = 500
"""Number of bootstrap draws of the interval of the noise rate."""

CONFIDENCE_LEVEL = 0.95
"""Confidence level of the interval of the noise rate."""

Scores = NDArray[np.floating]
"""Scores of pairs, one for each; higher means a better match."""


class NoiseRate(NamedTuple):
    """Estimated share of wrong pairs with its 95% bootstrap interval."""

    rate: float
    interval: tuple[float, float]


def estimate_noise_rate(scores: Scores, mismatch_scores: Scores, *, seed: int = 0) -> NoiseRate:
    """Estimate the share of wrong pairs with a bootstrap interval.

    Args:
        scores: scores of the pairs, ``(n,)``; higher is better.
        mismatch_scores: scores of pairs that are known to be wrong, ``(m,)``.
        seed: seed of the bootstrap.

    >>> random = np.random.default_rng(0)
    >>> scores = np.concatenate([random.normal(4, 1, 8000), random.normal(0, 1, 2000)])
    >>> noise = estimate_noise_rate(scores, random.normal(0, 1, 1000))
    >>> round(noise.rate, 1), noise.interval[0] < noise.rate < noise.interval[1]
    (0.2, True)
    """
    for name, values in (("scores", scores), ("mismatch_scores", mismatch_scores)):
        good = len(values) > 0 and bool(np.isfinite(values).all())
        check(good, f"{name}: expected one or more finite numbers, got {np.isfinite(values).sum()} of {len(values)}.")
    random, pairs, mismatches = numpy_generator("bootstrap.noise", seed), np.sort(scores), np.sort(mismatch_scores)
    rates = _noise_rates_at_thresholds(_empirical_cdf(pairs, _compute_score_thresholds(mismatches)), mismatches)
    draws, number = np.empty((NUM_BOOTSTRAP_DRAWS, len(MISMATCH_QUANTILES_TRIED_AS_THRESHOLDS))), len(mismatches)
    position = np.empty(number, dtype=np.int64)
    position[np.argsort(mismatch_scores)] = np.arange(number)
    for draw in range(NUM_BOOTSTRAP_DRAWS):
        # Repeating the sorted scores by their counts gives the resample in order, without another sort.
        counts = np.bincount(position[random.integers(0, number, number)], minlength=number)
        drawn = np.repeat(mismatches, counts)
        # Numbers of resampled pairs between thresholds are multinomial, so pairs need not be resampled one by one.
        between = np.diff(_empirical_cdf(pairs, _compute_score_thresholds(drawn)), prepend=0, append=1)
        below = random.multinomial(len(pairs), between)[:-1].cumsum() / len(pairs)
        draws[draw] = _noise_rates_at_thresholds(below, drawn)
    best = ((draws - rates.min()) ** 2).mean(axis=0).argmin()
    low, high = np.quantile(draws[:, best], ((1 - CONFIDENCE_LEVEL) / 2, (1 + CONFIDENCE_LEVEL) / 2))
    return NoiseRate(float(rates[best]), (float(low), float(high)))


def _compute_score_thresholds(sorted_mismatches: Scores) -> Scores:
    """Return the mismatch scores at the quantiles `MISMATCH_QUANTILES_TRIED_AS_THRESHOLDS`."""
    positions = np.ceil(MISMATCH_QUANTILES_TRIED_AS_THRESHOLDS * (len(sorted_mismatches) - 1)).astype(int)
    thresholds: Scores = sorted_mismatches[positions]
    return thresholds


def _empirical_cdf(sorted_scores: Scores, thresholds: Scores) -> NDArray[np.float64]:
    """Return the share of scores at or below each threshold."""
    return np.searchsorted(sorted_scores, thresholds, side="right") / len(sorted_scores)


def _noise_rates_at_thresholds(pair_cdf: NDArray[np.float64], sorted_mismatches: Scores) -> NDArray[np.float64]:
    """Estimate the noise rate at each threshold, a ratio of two CDFs.

    It is the CDF of the pairs' scores divided by that of the known mismatches' scores.
    """
    thresholds = _compute_score_thresholds(sorted_mismatches)
    rates: NDArray[np.float64] = pair_cdf / _empirical_cdf(sorted_mismatches, thresholds)
    return rates.clip(max=1.0)


def estimate_pair_fdrs(scores: Scores, mismatch_scores: Scores, noise_rate: float) -> NDArray[np.float64]:
    """Estimate, for each pair, the false discovery rate of flagging all pairs up to its score.

    It is the share of right pairs among those that score at most s, the score of the pair: 1 - noise_rate F0(s) / F(s),
    where F0 and F are the shares of mismatches and pairs that score at most s, made monotone in s. It has no guarantee.

    >>> estimate_pair_fdrs(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5]), 0.25).round(2).tolist()
    [0.5, 0.5, 0.67, 0.75]
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    wrong = noise_rate * _empirical_cdf(np.sort(mismatch_scores), ordered)
    good = np.clip(1 - wrong / _empirical_cdf(ordered, ordered), 0, 1)
    rates = np.empty(len(scores))
    rates[order] = np.minimum.accumulate(good[::-1])[::-1]
    return rates


def estimate_separation_auc(scores: Scores, mismatch_scores: Scores, noise_rate: float) -> float:
    """Estimate how well scores separate correct pairs from known mismatches, as an AUC.

    `noise_rate` is the share of wrong pairs among those of `scores`. Wrong pairs score above known mismatches half the
    time. With the lower end of the interval of the rate, the estimate is a cautious one.

    >>> mismatches = np.arange(10.0)
    >>> estimate_separation_auc(np.concatenate([mismatches, mismatches + 10]), mismatches, 0.5)
    1.0
    >>> estimate_separation_auc(mismatches, mismatches, 0.0), estimate_separation_auc(mismatches - 5, mismatches, 0.9)
    (0.5, 0.0)
    """
    if noise_rate >= 1:
        return 0.0
    mixed = area_under_roc_curve(scores, mismatch_scores)
    return min(max((mixed - noise_rate / 2) / (1 - noise_rate), 0.0), 1.0)


def is_rate_reliable(scores: Scores, mismatch_scores: Scores, assumed_noise_rate: float) -> bool:
    """Return whether scores separate correct pairs well enough to trust the noise rate.

    The separation is that under an assumed rate, cautiously the lower end of the interval.
    """
    return estimate_separation_auc(scores, mismatch_scores, assumed_noise_rate) >= MIN_SEPARATION_AUC


def area_under_roc_curve(positives: Scores, negatives: Scores) -> float:
    """Return how often a positive scores above a negative, ties counting half.

    >>> area_under_roc_curve(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ordered = np.sort(negatives)
    below = (np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")) / 2
    return float(below.mean() / len(ordered))
