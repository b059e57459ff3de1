"""How sure a number is: bootstrap intervals over test items, of one encoder and of the difference of two.

The items are drawn again with replacement; nothing is fitted again, so that an interval says how much the number would
move with other test items, not with other training items or another seed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple, TypeVar

import numpy as np

from contraport.errors import check
from contraport.seeding import generator

LEVEL = 0.95
"""How often an interval is to cover what it estimates."""


def bonferroni_level(comparisons: int) -> float:
    """Return how sure each of several intervals is to be for all to hold at once at `LEVEL` (Bonferroni).

    >>> bonferroni_level(1), round(bonferroni_level(10), 4)
    (0.95, 0.995)
    """
    return 1 - (1 - LEVEL) / comparisons


RESAMPLES = 1_000
"""How many times the items are drawn again."""

_COUNTS_AT_ONCE = 1 << 22

ItemValues = np.ndarray[Any, Any]
_Statistic = Callable[[ItemValues, ItemValues], ItemValues]
"""Of items `(n, ...)`, and how often each counts `(b, n)`, one number for each row of counts `(b,)`."""

K = TypeVar("K", bound=Hashable)


def mean(items: ItemValues, counts: ItemValues) -> ItemValues:
    """Return the mean of items `(n,)` or `(n, k)` under each row of counts `(b, n)`.

    >>> mean(np.array([1.0, 2.0, 6.0]), np.array([[1, 1, 1], [0, 2, 1]])).round(3).tolist()
    [3.0, 3.333]
    """
    by_item = items.reshape(len(items), -1).mean(axis=1, dtype=np.float64)
    return np.asarray(counts @ by_item / counts.sum(axis=1))


def bounded_bootstrap_mean(items: ItemValues, counts: ItemValues) -> ItemValues:
    """Return the mean of items `(n,)` under each row of counts `(b, n)`, of a number that cannot pass 1.

    What is added up is what the items do to the logarithm of what the number is short of 1: to first order the same.

    >>> items, counts = np.array([0.7, 0.9, 1.1]), np.array([[1, 1, 1], [0, 1, 2], [2, 1, 0]])
    >>> mean(items, counts).round(3).tolist(), bounded_bootstrap_mean(items, counts).round(3).tolist()
    ([0.9, 1.033, 0.767], [0.9, 0.974, 0.621])
    """
    value = items.mean(dtype=np.float64)
    lacking, moved = 1 - value, mean(items, counts) - value
    return np.asarray(1 - lacking * np.exp(-moved / lacking) if lacking > 0 else value + moved)


def clipped_bootstrap_mean(items: ItemValues, counts: ItemValues) -> ItemValues:
    """Return `bounded_bootstrap_mean`, and 0 where that is below 0.

    >>> clipped_bootstrap_mean(np.array([-0.3, 0.2, 0.4]), np.array([[1, 1, 1], [3, 0, 0]])).round(3).tolist()
    [0.1, 0.0]
    """
    return bounded_bootstrap_mean(items, counts).clip(min=0)


def root_mean(items: ItemValues, counts: ItemValues) -> ItemValues:
    """Return the root of the mean of items `(n,)` under each row of counts `(b, n)`, 0 where that is below 0.

    >>> root_mean(np.array([4.0, 14.0, -8.0]), np.array([[1, 1, 0], [1, 0, 1]])).tolist()
    [3.0, 0.0]
    """
    return np.asarray(np.sqrt(mean(items, counts).clip(min=0)))


def median(items: ItemValues, counts: ItemValues) -> ItemValues:
    """Return the median of items `(n,)`, or the mean of those of each of k columns, under each row of counts `(b, n)`.

    >>> median(np.array([1.0, 2.0, 6.0]), np.array([[1, 1, 1], [0, 1, 1]])).tolist()
    [2.0, 4.0]
    """
    columns = items.reshape(len(items), -1).T
    return np.asarray(np.mean([_median(column, counts) for column in columns], axis=0))


def _median(items: ItemValues, counts: ItemValues) -> ItemValues:
    order = items.argsort(kind="stable")
    values, passed = items[order], counts[:, order].cumsum(axis=1)
    half = passed[:, -1:] / 2
    below, above = ((passed < half).sum(axis=1), (passed <= half).sum(axis=1))
    return np.asarray((values[below] + values[above]) / 2)


@dataclass(frozen=True, eq=False)
class MetricResult:
    """What a measure says of each test item, and how that becomes a number.

    Attributes:
        items: (n,) or (n, k).
        statistic: of the items, and of how often each counts.
        parts: what each of the k columns is called, where each is a number by itself too.
    """

    items: ItemValues
    statistic: _Statistic = mean
    parts: tuple[str, ...] = ()

    @cached_property
    def value(self) -> float:
        """The number, where each item counts once."""
        return float(self.statistic(self.items, np.ones((1, len(self.items))))[0])

    @property
    def is_mean(self) -> bool:
        """Whether the number is the mean of the items."""
        return self.statistic in (mean, bounded_bootstrap_mean, clipped_bootstrap_mean)

    def by_part(self) -> dict[str, MetricResult]:
        """Return the finding of each part alone."""
        if not self.parts:
            return {}
        return {
            part: MetricResult(column, self.statistic) for part, column in zip(self.parts, self.items.T, strict=True)
        }


def as_metric_result(said: ItemValues | MetricResult | float) -> MetricResult | float:
    """Return what a measure said as a finding, of items alone that of their mean, or the one number for all."""
    return MetricResult(said) if isinstance(said, np.ndarray) else said


class Interval(NamedTuple):
    """The ends of an interval."""

    low: float
    high: float


class Difference(NamedTuple):
    """How much larger one number is than another, on the same items, and how sure that is."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """Whether its interval leaves zero out."""
        return self.low > 0 or self.high < 0


def resampled(
    findings: Mapping[K, MetricResult], *, resamples: int = RESAMPLES, seed: int = 0
) -> dict[K, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return what each number becomes as the items are drawn again, `(resamples,)`: the same draws for all of them.

    So the difference of two of these is that of a paired bootstrap. The time grows with items times resamples.

    Raises:
        UsageError: the findings are of unequal numbers of items.
    """
    sizes = {len(finding.items) for finding in findings.values()}
    check(len(sizes) <= 1, f"findings: expected as many items in each, got {sorted(sizes)}.")
    if not sizes:
        return {}
    items, random = sizes.pop(), generator("bootstrap.items", seed)
    step = max(1, _COUNTS_AT_ONCE // items)
    parts: dict[K, list[ItemValues]] = {key: [] for key in findings}
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        places = random.integers(items, size=(rows, items)) + items * np.arange(rows)[:, None]
        counts = np.bincount(places.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float64)
        for key, finding in findings.items():
            parts[key].append(finding.statistic(finding.items, counts))
    return {key: np.concatenate(found) for key, found in parts.items()}


def percentile_interval(draws: ItemValues, level: float = LEVEL) -> Interval:
    """Return the interval that leaves out equal shares of the draws on both sides; those without a number are none."""
    low, high = np.quantile(draws[np.isfinite(draws)], [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def interval(finding: MetricResult, *, level: float = LEVEL, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """Return the percentile bootstrap interval of a number over its items.

    Efron and Tibshirani, "An introduction to the bootstrap" (1993), chapter 13. Of items that all agree it has no
    width, which says nothing of rarer ones than 1 in n.

    >>> interval(MetricResult(np.arange(100) % 10 > 0))
    Interval(low=0.84, high=0.95)
    """
    return percentile_interval(resampled({"": finding}, resamples=resamples, seed=seed)[""], level)


def paired_bootstrap_difference(
    first: tuple[float, ItemValues], second: tuple[float, ItemValues], *, comparisons: int = 1
) -> Difference:
    """Return the difference of two numbers, each with what `resampled` made of it: of one call, they are paired.

    Args:
        first: the number, and its draws ``(resamples,)``.
        second: likewise.
        comparisons: how many intervals are to hold at once. For more than one the ends move away from the median as
            those of a normal distribution would: so far out there are too few draws to count.

    >>> better = np.arange(100) % 10 > 0
    >>> findings = {"better": MetricResult(better), "worse": MetricResult(better & (np.arange(100) > 20))}
    >>> draws = resampled(findings)
    >>> numbers = [(findings[name].value, draws[name]) for name in findings]
    >>> difference = paired_bootstrap_difference(*numbers)
    >>> [round(number, 2) for number in difference], difference.is_significant
    ([0.18, 0.11, 0.26], True)
    >>> [round(number, 2) for number in paired_bootstrap_difference(*numbers, comparisons=3)]
    [0.18, 0.09, 0.28]
    """
    apart = first[1] - second[1]
    low, high = percentile_interval(apart)
    if comparisons > 1:
        middle = float(np.median(apart[np.isfinite(apart)]))
        further = _DISTANCE.inv_cdf((1 + bonferroni_level(comparisons)) / 2) / _DISTANCE.inv_cdf((1 + LEVEL) / 2)
        low, high = middle - further * (middle - low), middle + further * (high - middle)
    return Difference(first[0] - second[0], low, high)


_DISTANCE = NormalDist()
