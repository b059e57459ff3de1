"""Confidence intervals over random seeds, for means and for paired differences.

Two or three seeds determine a variance poorly. Each variance is therefore shrunk toward a prior from the variances of
the whole table (moderated): its own estimate has the weight of its degrees of freedom, and the prior has more weight
the more the other estimates agree (Smyth, 2004, Linear models and empirical Bayes methods, section 6.2). A difference
varies with the seeds and with the test items. Its variance is the sum of both, and its interval Student's with the
degrees of freedom of Satterthwaite (1946).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from contraport.metrics.intervals import (
    CONFIDENCE_LEVEL,
    Array,
    Difference,
    Interval,
    MetricResult,
    bonferroni_confidence_level,
    bootstrap_interval,
)

_MAX_PRIOR_DOF = 1e4
"""Maximum degrees of freedom of a variance prior, reached if all variance estimates agree."""

MAX_PREDICTED_SEEDS = 1_000
"""Number of seeds beyond which `predict_num_seeds_to_decide` gives up."""


class VarianceEstimate(NamedTuple):
    """Variance estimate with its degrees of freedom."""

    variance: float
    dof: float

    def shrink_toward(self, prior: VarianceEstimate | None) -> VarianceEstimate:
        """Return the variance shrunk toward a prior, weighted by degrees of freedom.

        >>> VarianceEstimate(4.0, 1.0).shrink_toward(VarianceEstimate(1.0, 3.0))
        VarianceEstimate(variance=1.75, dof=4.0)
        """
        if prior is None:
            return self
        dof = self.dof + prior.dof
        return VarianceEstimate((self.dof * self.variance + prior.dof * prior.variance) / dof, dof)


def estimate_variance_prior(estimates: Iterable[VarianceEstimate]) -> VarianceEstimate | None:
    """Fit an empirical-Bayes prior to three or more sample variances (Smyth, 2004).

    The logarithms of estimates of one variance spread as their degrees of freedom imply; the excess is the spread of
    the variances themselves. The degrees of freedom are at most half of the total, as the estimates share a baseline.

    >>> estimate_variance_prior([VarianceEstimate(variance, 2.0) for variance in (1.0, 1.1, 0.9)]).dof
    3.0
    >>> estimate_variance_prior([VarianceEstimate(variance, 40.0) for variance in (1.0, 100.0, 0.01)]).dof < 2
    True
    """
    from scipy.optimize import brentq
    from scipy.special import digamma, polygamma

    several = list(estimates)
    variances = np.array([one.variance for one in several])
    if len(several) < 3 or not np.median(variances) > 0:
        return None
    dof = np.array([one.dof for one in several])
    variances = np.maximum(variances, 1e-2 * np.median(variances))  # few test items give variances near zero
    logs = np.log(variances) - digamma(dof / 2) + np.log(dof / 2)
    excess = float(logs.var(ddof=1) - polygamma(1, dof / 2).mean())
    own = _MAX_PRIOR_DOF
    if excess > polygamma(1, own / 2):
        own = float(brentq(lambda one: polygamma(1, one / 2) - excess, 1e-3, _MAX_PRIOR_DOF))
    variance = float(np.exp(logs.mean() + digamma(own / 2) - np.log(own / 2)))
    return VarianceEstimate(variance, min(own, float(dof.sum()) / 2))


def estimate_moderated_variance(values: Array, prior: VarianceEstimate | None = None) -> VarianceEstimate | None:
    """Return the variance of values ``(s,)`` over seeds, shrunk toward a prior.

    For a single seed it is the prior itself.
    """
    if len(values) < 2:
        return prior
    return VarianceEstimate(float(values.var(ddof=1)), len(values) - 1).shrink_toward(prior)


def mean_interval_over_seeds(
    values: Array, fallback_item_values: Array | None = None, *, prior: VarianceEstimate | None = None
) -> Interval | None:
    """Confidence interval of the mean of values ``(s,)``, one per seed.

    For one seed without a prior, it is the bootstrap interval over `fallback_item_values`, ``(s, n)``, or None without
    them. It is None too if all values are equal, as they do not show how others would vary.

    >>> mean_interval_over_seeds(np.array([0.9, 0.91, 0.92]))
    Interval(low=0.885..., high=0.934...)
    """
    mean, estimate = float(values.mean()), estimate_moderated_variance(values, prior)
    if estimate is None:
        return None if fallback_item_values is None else bootstrap_interval(MetricResult(fallback_item_values[0]))
    if estimate.variance == 0:
        return None
    half = _half_width_in_standard_errors(CONFIDENCE_LEVEL, estimate.dof) * (estimate.variance / len(values)) ** 0.5
    return Interval(mean - half, mean + half)


def _half_width_in_standard_errors(confidence_level: float, dof: float) -> float:
    """Return the half width of a Student's t interval, in standard errors."""
    from scipy.stats import t as student

    return float(student.ppf((1 + confidence_level) / 2, dof))


@dataclass(frozen=True)
class DifferenceAndVariances:
    """Difference of two means over the same seeds, with variances over seeds and items.

    Attributes:
        seed_variance: variance of the difference between seeds; None if it cannot be estimated.
        item_variance: variance of the difference due to the choice of test items; None if it cannot be estimated.
        item_variance_reducible_by_seeds: part of `item_variance` independent between seeds, which more seeds shrink.
    """

    value: float
    num_seeds: int
    seed_variance: VarianceEstimate | None
    item_variance: VarianceEstimate | None
    item_variance_reducible_by_seeds: float = 0.0

    @property
    def missing_interval_reason(self) -> str | None:
        """Reason why the difference has no confidence interval, otherwise None."""
        if any(one is not None and one.variance > 0 for one in (self.seed_variance, self.item_variance)):
            return None
        if self.num_seeds > 1:
            return f"its difference is exactly the same with each of the {self.num_seeds} seeds"
        return "there is one seed" if self.item_variance is None else "its difference is the same on each test item"

    def __neg__(self) -> DifferenceAndVariances:
        return replace(self, value=-self.value)

    def with_interval(self, *, comparisons: int = 1, assumed_num_seeds: int | None = None) -> Difference | None:
        """Return the difference with its interval, or None if its variance is zero or unknown.

        Args:
            comparisons: number of intervals that must hold at once.
            assumed_num_seeds: number of seeds to predict the interval for, with unchanged variances; default: the
                actual one.
        """
        seeds = assumed_num_seeds or self.num_seeds
        components = list[VarianceEstimate]()
        if self.seed_variance is not None:
            dof = self.seed_variance.dof + seeds - self.num_seeds
            components.append(VarianceEstimate(self.seed_variance.variance / seeds, dof))
        if self.item_variance is not None:
            saved = self.item_variance_reducible_by_seeds * (1 - self.num_seeds / seeds)
            components.append(VarianceEstimate(self.item_variance.variance - saved, self.item_variance.dof))
        total = sum(one.variance for one in components)
        if total == 0:  # also for equal values, which do not show that others would be equal
            return None
        squares = sum(one.variance**2 / one.dof for one in components)
        dof = total**2 / squares if squares > 0 else np.inf  # the square of a tiny variance underflows to zero
        half = _half_width_in_standard_errors(bonferroni_confidence_level(comparisons), dof) * total**0.5
        return Difference(self.value, self.value - half, self.value + half)


def estimate_paired_difference(
    values: Array,
    other_values: Array,
    item_values: Array | None = None,
    other_item_values: Array | None = None,
    *,
    prior: VarianceEstimate | None = None,
) -> DifferenceAndVariances:
    """Estimate the difference of two means, with its variances due to seeds and test items.

    Args:
        values: one value per seed, ``(s,)``.
        other_values: the values to subtract, ``(s,)``.
        item_values: values per seed and test item, ``(s, n)``, the same items with every seed; None: unknown.
        other_item_values: likewise for `other_values`.
        prior: prior of the variance of the difference between seeds.

    >>> better = np.array([0.91, 0.93, 0.92])
    >>> estimate_paired_difference(better, better - np.array([0.02, 0.021, 0.019])).with_interval().is_significant
    True
    """
    differences, item_variance, per_seed = values - other_values, None, 0.0
    if item_values is not None and other_item_values is not None:
        of_items = item_values.astype(np.float64) - other_item_values
        seeds, number = of_items.shape
        item_variance = VarianceEstimate(float(of_items.mean(axis=0).var(ddof=1)) / number, number - 1)
        if seeds > 1:  # one seed cannot separate the variance that stays with the items from that of the seed
            per_seed = min(item_variance.variance, float(of_items.var(axis=0, ddof=1).mean()) / (seeds * number))
    variance = estimate_moderated_variance(differences, prior)
    return DifferenceAndVariances(float(differences.mean()), len(differences), variance, item_variance, per_seed)


def predict_num_seeds_to_decide(
    is_decided: Callable[[Sequence[Difference]], bool],
    differences: Sequence[DifferenceAndVariances],
    *,
    comparisons: int,
) -> int:
    """Predict how many seeds would make a test conclusive at the observed differences.

    It is `MAX_PREDICTED_SEEDS` if no smaller number would: there are too few test items, or the differences contradict
    each other. Each difference needs two seeds, as a single one cannot separate their variance from that of items.

    >>> difference = estimate_paired_difference(np.array([0.91, 0.93]), np.array([0.9, 0.9]))
    >>> predict_num_seeds_to_decide(lambda differences: differences[0].is_significant, [difference], comparisons=1)
    5
    """
    fewest = max(one.num_seeds for one in differences)  # rows with fewer seeds so far get as many

    def is_decided_by(seeds: int) -> bool:
        predicted = [one.with_interval(comparisons=comparisons, assumed_num_seeds=seeds) for one in differences]
        return is_decided([one for one in predicted if one is not None])

    # Intervals shrink as seeds are added, so what is decided stays decided.
    return fewest + bisect_left(range(fewest, MAX_PREDICTED_SEEDS), True, key=is_decided_by)
