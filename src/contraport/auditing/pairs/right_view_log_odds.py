"""Log odds that each view belongs to its item, from pair scores.

A pair of views is right if both views belong to the item. The scores of all pairs give the probability of each
combination of at most three wrong views, by Bayes' rule; that of a view sums over the combinations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

MAX_ASSUMED_WRONG_VIEWS_PER_ITEM = 3
"""Maximum number of wrong views of one item that is considered possible."""

PAIR_DEPENDENCE_DISCOUNT = 0.5
"""Factor of the log ratio of each pair of views, as pairs that share a view are not independent."""

MAX_ABS_PAIR_LOG_RATIO = 6.0
"""Maximum absolute log ratio of a pair of views, so that no single pair decides alone."""

_NUM_GRID_POINTS, _MAX_SAMPLED_SCORES, _MIN_DENSITY = 512, 5_000, 1e-9
"""Points at which densities are estimated; scores they are estimated from; number added before a log."""


def estimate_view_noise_rates(names: Sequence[str], pair_rates: Mapping[tuple[str, str], float]) -> NDArray[np.float64]:
    """Estimate each view's share of wrong items, ``(k,)``, from pairwise mismatch rates.

    A pair is right if both of its views are: log(1 - rate) of a pair is the sum over its two views. The least squares
    solution with rates of at least 0 is returned.

    >>> rates = {("a", "b"): 0.2, ("a", "c"): 0.2, ("b", "c"): 0.0}
    >>> estimate_view_noise_rates(["a", "b", "c"], rates).round(3).tolist()
    [0.2, 0.0, 0.0]
    """
    from scipy.optimize import nnls

    design = np.array([[float(name in pair) for name in names] for pair in pair_rates])
    logs, _ = nnls(design, -np.log1p(-np.minimum(list(pair_rates.values()), 0.99)))
    return np.asarray(-np.expm1(-logs))


def computable_view_rate_mask(names: Sequence[str], reliable_pairs: Collection[tuple[str, str]]) -> NDArray[np.bool_]:
    """Return a mask of views whose share of wrong items can be computed, ``(k,)``.

    It is computed from the noise rates of reliable pairs of views. The rate of one pair is the sum over its two views;
    three pairs of three views determine the share of each.

    >>> computable_view_rate_mask(["a", "b", "c", "d"], [("a", "b"), ("a", "c"), ("b", "c")]).tolist()
    [True, True, True, False]
    >>> computable_view_rate_mask(["a", "b", "c"], [("a", "b")]).tolist()
    [False, False, False]
    """
    design = np.array([[float(name in pair) for name in names] for pair in reliable_pairs]).reshape(-1, len(names))
    return np.asarray(np.isclose((np.linalg.pinv(design) @ design).diagonal(), 1.0))


def right_view_log_odds(
    mismatch_log_ratios: NDArray[np.floating],
    view_pairs: Sequence[tuple[int, int]],
    view_noise_rates: NDArray[np.floating],
) -> NDArray[np.floating]:
    """Return the log odds that each view belongs to its item, ``(n, k)``.

    Args:
        mismatch_log_ratios: `mismatch_log_likelihood_ratios` of each pair of views, ``(n, pairs)``.
        view_pairs: the numbers of the two views of each pair.
        view_noise_rates: share of items whose view is wrong, for each view, ``(k,)``.
    """
    from scipy.special import logsumexp

    views = range(len(view_noise_rates))
    wrong_views = [wrong for size in range(MAX_ASSUMED_WRONG_VIEWS_PER_ITEM + 1) for wrong in combinations(views, size)]
    is_wrong = np.array([[view in wrong for view in views] for wrong in wrong_views])
    is_pair_wrong = np.array([[row[first] or row[second] for first, second in view_pairs] for row in is_wrong])
    prior = np.clip(view_noise_rates, 0.01, 0.9)
    log_prior = np.where(is_wrong, np.log(prior), np.log1p(-prior)).sum(axis=1)
    log_posterior = log_prior + PAIR_DEPENDENCE_DISCOUNT * mismatch_log_ratios @ is_pair_wrong.T
    columns = [
        logsumexp(log_posterior[:, ~wrong], axis=1) - logsumexp(log_posterior[:, wrong], axis=1) for wrong in is_wrong.T
    ]
    return np.stack(columns, axis=1)


def mismatch_log_likelihood_ratios(
    scores: NDArray[np.floating],
    pair_scores: NDArray[np.floating],
    mismatch_scores: NDArray[np.floating],
    noise_rate: float,
) -> NDArray[np.floating]:
    """Return log p(score | mismatched) - log p(score | right) of each score.

    The ratios, ``(m,)``, are clipped to `MAX_ABS_PAIR_LOG_RATIO`. Scores of the pairs are a mixture of both, in the
    proportion of the noise rate; known mismatches give the first.

    Args:
        scores: scores to judge, ``(m,)``.
        pair_scores: scores of the pairs of the data, ``(n,)``.
        mismatch_scores: scores of known mismatches.
        noise_rate: share of wrong pairs of the data.
    """
    from scipy.stats import gaussian_kde

    rate = min(noise_rate, 0.9)
    grid = np.linspace(pair_scores.min(), pair_scores.max(), _NUM_GRID_POINTS)
    mixture, mismatched = (
        np.asarray(gaussian_kde(np.sort(values)[:: max(1, len(values) // _MAX_SAMPLED_SCORES)])(grid))
        for values in (pair_scores, mismatch_scores)
    )
    # Where the mismatches alone explain the mixture, the density of right pairs stays positive.
    right = np.maximum((mixture - rate * mismatched) / (1 - rate), 0.02 * mixture)
    ratio = np.log(mismatched + _MIN_DENSITY) - np.log(right + _MIN_DENSITY)
    return np.asarray(np.interp(scores, grid, ratio).clip(-MAX_ABS_PAIR_LOG_RATIO, MAX_ABS_PAIR_LOG_RATIO))
