"""How sure a mean over seeds is, and a difference on the same seeds and items.

With two or three seeds a variance is hardly known by itself. So each is moderated by those of the whole table: what it
is found to be counts as much as its degrees of freedom, and what the others say that it is likely to be, as much as
they agree (Smyth, 2004, Linear models and empirical Bayes methods, section 6.2). A difference moves with the seeds and
with the test items: its variance is the sum of both, and its interval Student's with the degrees of freedom of
Satterthwaite (1946).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import digamma, polygamma
from scipy.stats import t as student

from contraport.metrics.intervals import LEVEL, Difference, Interval, MetricResult, bonferroni_level, bootstrap_interval

Array = np.ndarray[Any, Any]

_LARGEST_FREEDOM = 1e4
_SMALLEST_SHARE = 1e-2
"""Variances below this part of the median are taken to be this: a few test items more or less are all that they see."""


class VarianceEstimate(NamedTuple):
    """A variance, and how many degrees of freedom it is known with."""

    variance: float
    freedom: float

    def moderated(self, likely: VarianceEstimate | None) -> VarianceEstimate:
        """Return the variance drawn to what it is likely to be.

        >>> VarianceEstimate(4.0, 1.0).moderated(VarianceEstimate(1.0, 3.0))
        VarianceEstimate(variance=1.75, freedom=4.0)
        """
        if likely is None:
            return self
        freedom = self.freedom + likely.freedom
        return VarianceEstimate((self.freedom * self.variance + likely.freedom * likely.variance) / freedom, freedom)


def variance_prior(found: Iterable[VarianceEstimate]) -> VarianceEstimate | None:
    """Return what a variance is likely to be where some were found, and how sure that is; of fewer than three none.

    The logarithms of variances that are alike spread as their degrees of freedom say; what they spread beyond it is
    what they differ. All of them together are taken for half as many, as they share what they are differences from.

    >>> variance_prior([VarianceEstimate(1.0, 2.0), VarianceEstimate(1.1, 2.0), VarianceEstimate(0.9, 2.0)]).freedom
    3.0
    >>> variance_prior([VarianceEstimate(variance, 40.0) for variance in (1.0, 100.0, 0.01)]).freedom < 2
    True
    """
    known = list(found)
    values = np.array([one.variance for one in known])
    if len(known) < 3 or not np.median(values) > 0:
        return None
    freedom = np.array([one.freedom for one in known])
    logs = np.log(np.maximum(values, _SMALLEST_SHARE * np.median(values))) - digamma(freedom / 2) + np.log(freedom / 2)
    beyond = float(logs.var(ddof=1) - polygamma(1, freedom / 2).mean())
    own = _LARGEST_FREEDOM
    if beyond > polygamma(1, own / 2):
        own = float(brentq(lambda one: polygamma(1, one / 2) - beyond, 1e-3, _LARGEST_FREEDOM))
    likely = float(np.exp(logs.mean() + digamma(own / 2) - np.log(own / 2)))
    return VarianceEstimate(likely, min(own, float(freedom.sum()) / 2))


def estimate_variance(values: Array, likely: VarianceEstimate | None = None) -> VarianceEstimate | None:
    """Return how values ``(s,)``, one a seed, are spread; of one alone what is likely, or nothing."""
    if len(values) < 2:
        return likely
    return VarianceEstimate(float(values.var(ddof=1)), len(values) - 1).moderated(likely)


def seed_interval(
    values: Array, items: Array | None = None, *, likely: VarianceEstimate | None = None
) -> Interval | None:
    """Return the interval of a mean over seeds ``(s,)``.

    Of one seed where nothing is known of others, it is that over its items ``(1, n)``; without items there is none, nor
    of equal values, which do not tell how others would be spread.

    >>> seed_interval(np.array([0.9, 0.91, 0.92]))
    Interval(low=0.885..., high=0.934...)
    """
    mean, spread = float(values.mean()), estimate_variance(values, likely)
    if spread is None:
        return None if items is None else bootstrap_interval(MetricResult(items[0]))
    if spread.variance == 0:
        return None
    half = float(student.ppf((1 + LEVEL) / 2, spread.freedom)) * (spread.variance / len(values)) ** 0.5
    return Interval(mean - half, mean + half)


@dataclass(frozen=True)
class PairedDifference:
    """How much larger the mean of some values is than that of others on the same seeds, and what tells how sure it is.

    Attributes:
        value: how much.
        seeds: of how many seeds.
        by_seed: how it is spread with one seed, where that is known.
        by_item: the variance that test items make of it, where they are known.
        each_seed: the part of `by_item` that comes anew with every seed, and shrinks with more of them.
    """

    value: float
    seeds: int
    by_seed: VarianceEstimate | None
    by_item: VarianceEstimate | None
    each_seed: float = 0.0

    def __neg__(self) -> PairedDifference:
        return replace(self, value=-self.value)

    def difference(self, *, comparisons: int = 1, seeds: int | None = None) -> Difference | None:
        """Return it with its interval, or nothing where nothing tells how sure it is.

        Args:
            comparisons: how many intervals are to hold at once.
            seeds: of so many the interval would be this, if all that was found stayed as it is; default: those it has.
        """
        seeds = seeds or self.seeds
        spreads = list[VarianceEstimate]()
        if self.by_seed is not None:
            freedom = self.by_seed.freedom + seeds - self.seeds
            spreads.append(VarianceEstimate(self.by_seed.variance / seeds, freedom))
        if self.by_item is not None:
            less = self.each_seed * (1 - self.seeds / seeds)
            spreads.append(VarianceEstimate(self.by_item.variance - less, self.by_item.freedom))
        if not spreads:
            return None
        total = sum(one.variance for one in spreads)
        if total == 0:  # equal values are no sign that others would be equal
            return None
        known = sum(one.variance**2 / one.freedom for one in spreads)
        freedom = total**2 / known if known > 0 else np.inf  # a variance so small that its square is zero
        half = float(student.ppf((1 + bonferroni_level(comparisons)) / 2, freedom)) * total**0.5
        return Difference(self.value, self.value - half, self.value + half)


def paired(
    values: Array,
    others: Array,
    items: Array | None = None,
    other_items: Array | None = None,
    *,
    likely: VarianceEstimate | None = None,
) -> PairedDifference:
    """Return how much larger the mean of some values ``(s,)`` is than that of others on the same seeds.

    Args:
        values: one a seed.
        others: likewise.
        items: what each of the n test items says, ``(s, n)``, the same ones with every seed; none: not known.
        other_items: likewise.
        likely: how the difference with one seed is likely to be spread.

    >>> better = np.array([0.91, 0.93, 0.92])
    >>> paired(better, better - np.array([0.02, 0.021, 0.019])).difference().is_significant
    True
    """
    apart, by_item, each_seed = values - others, None, 0.0
    if items is not None and other_items is not None:
        of_items = items.astype(np.float64) - other_items
        seeds, number = of_items.shape
        by_item = VarianceEstimate(float(of_items.mean(axis=0).var(ddof=1)) / number, number - 1)
        if seeds > 1:  # of one, what stays with the items and what comes with the seed cannot be told apart
            each_seed = min(by_item.variance, float(of_items.var(axis=0, ddof=1).mean()) / (seeds * number))
    return PairedDifference(float(apart.mean()), len(apart), estimate_variance(apart, likely), by_item, each_seed)


MAX_SEEDS = 1_000
"""So many seeds, or no number of them."""


def seeds_to_decide(
    decided: Callable[[Sequence[Difference]], bool], found: Sequence[PairedDifference], *, comparisons: int
) -> int | None:
    """Return how many seeds of each would decide something of some differences, if these stayed as they are.

    Returns `MAX_SEEDS` where no number below would: then the test items are too few, or what is found speaks both
    ways. Returns none of one seed alone, which does not tell what comes with the seed and what stays.

    >>> some = paired(np.array([0.91, 0.93]), np.array([0.9, 0.9]))
    >>> seeds_to_decide(lambda differences: differences[0].is_significant, [some], comparisons=1)
    5
    """
    known = [one.seeds for one in found]
    if min(known, default=1) < 2:
        return None
    for seeds in range(max(known), MAX_SEEDS):  # of some there may be fewer yet
        then = [one.difference(comparisons=comparisons, seeds=seeds) for one in found]
        if decided([one for one in then if one is not None]):
            return seeds
    return MAX_SEEDS
