"""How sure a mean over seeds is, and a difference on the same seeds and items.

A difference moves with the seeds and with the test items, and its variance is the sum of both. With few seeds that of
one pair of rows is hardly known; so it is not taken to be smaller than what all rows of the column say, whose values
are the sum of a row, a seed and a rest that is spread alike (randomised blocks: Fisher, The design of experiments,
1935). The interval is Student's, with the degrees of freedom of Satterthwaite (1946).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from contraport.measures.intervals import LEVEL, Difference, Finding, Interval, interval

Array = np.ndarray[Any, Any]


class Spread(NamedTuple):
    """A variance, and how many degrees of freedom it is known with."""

    variance: float
    freedom: float


def over_seeds(values: Array, items: Array | None = None) -> Interval:
    """Return the interval of a mean over seeds ``(s,)``; of one seed, that over its items ``(1, n)``, where it has any.

    >>> over_seeds(np.array([0.9, 0.91, 0.92]))
    Interval(low=0.885..., high=0.934...)
    """
    if len(values) == 1:
        mean = float(values[0])
        return Interval(mean, mean) if items is None else interval(Finding(items[0]))
    half = float(student.ppf((1 + LEVEL) / 2, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(float(values.mean()) - half, float(values.mean()) + half)


def rest_of(column: Array) -> Spread | None:
    """Return how the difference of two rows is spread by the seeds, as all rows ``(r, s)`` of a column say.

    It is that of one seed. None where there are fewer than two rows or seeds.

    >>> rest_of(np.array([[0.90, 0.92], [0.80, 0.82]])).variance < 1e-12
    True
    """
    rows, seeds = column.shape
    if rows < 2 or seeds < 2:
        return None
    rest = column - column.mean(axis=1, keepdims=True) - column.mean(axis=0, keepdims=True) + column.mean()
    freedom = (rows - 1) * (seeds - 1)
    return Spread(2 * float(np.square(rest).sum()) / freedom, freedom)


def paired(
    values: Array,
    others: Array,
    items: Array | None = None,
    other_items: Array | None = None,
    *,
    rest: Spread | None = None,
    comparisons: int = 1,
) -> Difference | None:
    """Return how much larger the mean of some values ``(s,)`` is than that of others on the same seeds.

    Args:
        values: one a seed.
        others: likewise.
        items: what each of the n test items says, ``(s, n)``, the same ones with every seed; none: not known.
        other_items: likewise.
        rest: what all rows of the column say of the seeds.
        comparisons: how many intervals are to hold at once.

    Returns None where nothing tells how sure the difference is.

    >>> better = np.array([0.91, 0.93, 0.92])
    >>> paired(better, better - np.array([0.02, 0.021, 0.019])).is_sure
    True
    """
    apart, seeds = values - others, len(values)
    spreads: list[Spread] = []
    if seeds > 1:
        own = Spread(float(apart.var(ddof=1)), seeds - 1)
        wider = own if rest is None or own.variance > rest.variance else rest
        spreads.append(Spread(wider.variance / seeds, wider.freedom))
    if items is not None and other_items is not None:
        by_item = (items.astype(np.float64) - other_items).mean(axis=0)
        spreads.append(Spread(float(by_item.var(ddof=1)) / len(by_item), len(by_item) - 1))
    if not spreads:
        return None
    total = sum(one.variance for one in spreads)
    known = sum(one.variance**2 / one.freedom for one in spreads)
    freedom = total**2 / known if known > 0 else np.inf
    half = float(student.ppf(1 - (1 - LEVEL) / (2 * comparisons), freedom)) * total**0.5
    value = float(apart.mean())
    return Difference(value, value - half, value + half)
