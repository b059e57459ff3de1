"""Bootstrap confidence intervals over test items, of one encoder or of a difference.

Items are resampled with replacement and nothing is fitted again. An interval therefore covers other test items, but not
other training items or seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple, TypeVar

import numpy as np

from contraport.errors import UsageError, check, check_integer, format_value, is_number
from contraport.seeding import numpy_generator

CONFIDENCE_LEVEL = 0.95
"""Default confidence level of the intervals."""

NUM_RESAMPLES = 1_000
"""Default number of bootstrap resamples."""

_MAX_COUNTS_IN_MEMORY = 1 << 22
"""Maximum number of bootstrap counts (resamples times items) held at a time: 32 MiB."""

Array = np.ndarray[Any, Any]

ItemValueArray = Array
"""Values of a metric per test item, `(n,)` or `(n, k)`."""

BootstrapStatistic = Callable[[ItemValueArray, Array], Array]
"""Maps item values `(n, ...)` and the count of each item `(b, n)` to one number per row of counts `(b,)`."""

ResultKeyT = TypeVar("ResultKeyT", bound=Hashable)
"""Type of the keys by which results and their draws are stored."""


def bonferroni_confidence_level(comparisons: int) -> float:
    """Return the confidence level of each of several simultaneous intervals (Bonferroni).

    >>> bonferroni_confidence_level(1), round(bonferroni_confidence_level(10), 4)
    (0.95, 0.995)
    """
    return 1 - (1 - CONFIDENCE_LEVEL) / comparisons


def bootstrap_means(items: ItemValueArray, counts: Array) -> Array:
    """Return the mean of item values on each bootstrap resample, `(b,)`.

    Item values are `(n,)` or `(n, k)`. Entry (i, j) of `counts`, `(b, n)`, is how often resample i has item j.

    >>> bootstrap_means(np.array([1.0, 2.0, 6.0]), np.array([[1, 1, 1], [0, 2, 1]])).round(3).tolist()
    [3.0, 3.333]
    """
    per_item = items.reshape(len(items), -1).mean(axis=1, dtype=np.float64)
    return np.asarray(counts @ per_item / counts.sum(axis=1))


def bootstrap_means_kept_below_1(items: ItemValueArray, counts: Array) -> Array:
    """Return bootstrap means, `(b,)`, transformed so that they stay below 1.

    Item values that are pseudovalues may have a mean above 1 on a resample. The change of the mean is therefore applied
    to log(1 - mean): equal to first order, and the result stays below 1.

    >>> items, counts = np.array([0.7, 0.9, 1.1]), np.array([[1, 1, 1], [0, 1, 2], [2, 1, 0]])
    >>> [means(items, counts).round(3).tolist() for means in (bootstrap_means, bootstrap_means_kept_below_1)]
    [[0.9, 1.033, 0.767], [0.9, 0.974, 0.621]]
    """
    value = items.mean(dtype=np.float64)
    below_one, change = 1 - value, bootstrap_means(items, counts) - value
    return np.asarray(1 - below_one * np.exp(-change / below_one) if below_one > 0 else value + change)


def bootstrap_means_limited_to_0_1(items: ItemValueArray, counts: Array) -> Array:
    """Return bootstrap means, `(b,)`, limited to the range from 0 to 1.

    >>> bootstrap_means_limited_to_0_1(np.array([-0.3, 0.2, 0.4]), np.array([[1, 1, 1], [3, 0, 0]])).round(3).tolist()
    [0.1, 0.0]
    """
    return bootstrap_means_kept_below_1(items, counts).clip(min=0)


def sqrt_bootstrap_means(items: ItemValueArray, counts: Array) -> Array:
    """Return square roots of bootstrap means, `(b,)`, with 0 for negative means.

    >>> sqrt_bootstrap_means(np.array([4.0, 14.0, -8.0]), np.array([[1, 1, 0], [1, 0, 1]])).tolist()
    [3.0, 0.0]
    """
    return np.asarray(np.sqrt(bootstrap_means(items, counts).clip(min=0)))


def bootstrap_medians(items: ItemValueArray, counts: Array) -> Array:
    """Return the median of item values on each bootstrap resample, `(b,)`.

    For item values `(n, k)` it is the mean of the k medians.

    >>> bootstrap_medians(np.array([1.0, 2.0, 6.0]), np.array([[1, 1, 1], [0, 1, 1]])).tolist()
    [2.0, 4.0]
    """
    medians = []
    for column in items.reshape(len(items), -1).T:
        order = column.argsort(kind="stable")
        values, cumulative = column[order], counts[:, order].cumsum(axis=1)
        half = cumulative[:, -1:] / 2
        below, above = (cumulative < half).sum(axis=1), (cumulative <= half).sum(axis=1)
        medians.append((values[below] + values[above]) / 2)
    return np.asarray(np.mean(medians, axis=0))


@dataclass(frozen=True, eq=False)
class MetricResult:
    """Metric values per test item, and the statistic that reduces them.

    Attributes:
        item_values: metric values per test item, (n,) or (n, k).
        statistic: function of item values and of bootstrap counts of the items, such as their mean.
        column_names: names of the k columns, if each is a result by itself, such as a retrieval direction; else empty.
        positions: positions of the test items that the values are of, (n,), if they are a sample; else None.
    """

    item_values: ItemValueArray
    statistic: BootstrapStatistic = bootstrap_means
    column_names: tuple[str, ...] = ()
    positions: Array | None = None

    @cached_property
    def value(self) -> float:
        """Value of the metric on the test items themselves, without resampling."""
        return float(self.statistic(self.item_values, np.ones((1, len(self.item_values))))[0])

    @property
    def is_mean_of_items(self) -> bool:
        """True if the metric is the mean of its item values."""
        return self.statistic in (bootstrap_means, bootstrap_means_kept_below_1, bootstrap_means_limited_to_0_1)

    def results_by_column(self) -> dict[str, MetricResult]:
        """Return one result for each column of values, keyed by column name."""
        if not self.column_names:
            return {}
        return {
            part: MetricResult(column, self.statistic, positions=self.positions)
            for part, column in zip(self.column_names, self.item_values.T, strict=True)
        }


class Interval(NamedTuple):
    """Confidence interval from `low` to `high`."""

    low: float
    high: float


class Difference(NamedTuple):
    """Difference of two metric values on the same items, with its confidence interval."""

    value: float
    low: float
    high: float

    @property
    def is_significant(self) -> bool:
        """True if the confidence interval excludes zero."""
        return self.low > 0 or self.high < 0

    def __neg__(self) -> Difference:
        return Difference(-self.value, -self.high, -self.low)


def draw_bootstrap_values(
    results: Mapping[ResultKeyT, MetricResult], *, resamples: int = NUM_RESAMPLES, seed: int = 0
) -> dict[ResultKeyT, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return each metric's values on shared bootstrap resamples, `(resamples,)`.

    Subtracting two of them therefore gives a paired bootstrap. The time grows with items times resamples. Metrics on a
    sample of the items share the resamples with those on as many of them.

    Raises:
        UsageError: the results have no items or different numbers of them, or there are no resamples.
    """
    check_integer("resamples", resamples)
    by_sample: dict[int | None, dict[ResultKeyT, MetricResult]] = {}
    for key, result in results.items():
        sampled = None if result.positions is None else len(result.positions)
        by_sample.setdefault(sampled, {})[key] = result
    if len(by_sample) > 1:
        drawn: dict[ResultKeyT, Any] = {}
        for part in by_sample.values():
            drawn |= draw_bootstrap_values(part, resamples=resamples, seed=seed)
        return {key: drawn[key] for key in results}
    sizes = {len(result.item_values) for result in results.values()}
    check(len(sizes) <= 1, f"results: all must have the same number of items, got {sorted(sizes)}.", "shape")
    if not sizes:
        return {}
    check(0 not in sizes, "results: must have at least one item, got none.", "empty")
    items, random = sizes.pop(), numpy_generator("bootstrap.items", seed)
    step = max(1, _MAX_COUNTS_IN_MEMORY // items)
    chunks: dict[ResultKeyT, list[Array]] = {key: [] for key in results}
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        # One bincount for all rows: row r uses the codes r * items to (r + 1) * items.
        positions = random.integers(items, size=(rows, items)) + items * np.arange(rows)[:, None]
        counts = np.bincount(positions.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float64)
        for key, result in results.items():
            chunks[key].append(result.statistic(result.item_values, counts))
    return {key: np.concatenate(values) for key, values in chunks.items()}


def percentile_interval(draws: Array, level: float = CONFIDENCE_LEVEL) -> Interval:
    """Return the percentile interval of the finite bootstrap draws.

    Raises:
        UsageError: no draw is finite.
    """
    finite = draws[np.isfinite(draws)]
    if len(finite) == 0:
        message = "draws: must have a finite value, got none: the metric is not defined on these items."
        raise UsageError(message, kind="not_finite")
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))


def bootstrap_interval(
    result: MetricResult, *, level: float = CONFIDENCE_LEVEL, resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Interval:
    """Return the percentile bootstrap confidence interval of a metric over its test items.

    Efron and Tibshirani, "An introduction to the bootstrap" (1993), chapter 13. If all items agree, it has no width;
    other values may still occur among up to about 3 / n of other items.

    Raises:
        UsageError: there are no items or no resamples, the level is not in (0, 1), or all draws are NaN or infinite.

    >>> bootstrap_interval(MetricResult(np.arange(100) % 10 > 0))
    Interval(low=0.84, high=0.95)
    """
    check(is_number(level) and 0 < level < 1, f"level: must be in (0, 1), got {format_value(level)}.")
    return percentile_interval(draw_bootstrap_values({"": result}, resamples=resamples, seed=seed)[""], level)


def paired_bootstrap_difference(
    value_and_draws: tuple[float, Array], other_value_and_draws: tuple[float, Array], *, comparisons: int = 1
) -> Difference:
    """Return the difference of two metric values, with its paired bootstrap interval.

    Args:
        value_and_draws: the value and its draws ``(resamples,)``, from `draw_bootstrap_values`.
        other_value_and_draws: the same for the value to subtract, from the same call.
        comparisons: number of intervals that must hold at once. If there are several, the ends move away from the
            median as those of a normal distribution would: there are too few draws for quantiles so far out.

    >>> better = np.arange(100) % 10 > 0
    >>> results = {"better": MetricResult(better), "worse": MetricResult(better & (np.arange(100) > 20))}
    >>> draws = draw_bootstrap_values(results)
    >>> values = [(results[name].value, draws[name]) for name in results]
    >>> difference = paired_bootstrap_difference(*values)
    >>> [round(number, 2) for number in difference], difference.is_significant
    ([0.18, 0.11, 0.26], True)
    >>> [round(number, 2) for number in paired_bootstrap_difference(*values, comparisons=3)]
    [0.18, 0.09, 0.28]
    """
    draws = value_and_draws[1] - other_value_and_draws[1]
    low, high = percentile_interval(draws)
    if comparisons > 1:
        middle = float(np.median(draws[np.isfinite(draws)]))
        quantile = NormalDist().inv_cdf
        stretch = quantile((1 + bonferroni_confidence_level(comparisons)) / 2) / quantile((1 + CONFIDENCE_LEVEL) / 2)
        low, high = middle - stretch * (middle - low), middle + stretch * (high - middle)
    return Difference(value_and_draws[0] - other_value_and_draws[0], low, high)
