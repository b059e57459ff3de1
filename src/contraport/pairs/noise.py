"""How many pairs are wrong, and which: from the scores of the pairs and of others that are known to be wrong.

The scores of the given pairs are a mixture: a share of them, the noise rate, are those of wrong pairs. Where the known
mismatches are scored as wrong pairs are, their scores say how the wrong ones are spread, and as good pairs seldom score
as low as many of the wrong ones do, the lower part of the mismatches' scores tells the share. The smaller that part,
the fewer good pairs score as low, and the fewer mismatches it is told by.

That the mismatches are scored as the wrong pairs are is all that matters. Pairs drawn anew after a training are not:
what was trained on is remembered, and scores higher. So a training that judges its own pairs has known mismatches among
them from the start (`contraport.pairs.decoys`), and a cross-fit judges pairs that no encoder has seen.

Source: the estimate is that of Storey (2002), A direct approach to false discovery rates, section 3, with the scores of
known mismatches in the place of p-values.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contraport.errors import check

LOWER_PART = 0.4
"""The part of the mismatches' scores below which good pairs are taken to be few."""

DRAWS = 500
COVERED = 0.95

Scores = NDArray[np.floating]


class NoiseRate(NamedTuple):
    """The share of wrong pairs, and its bootstrap interval of 95 % over pairs and mismatches."""

    rate: float
    interval: tuple[float, float]


def noise(scores: Scores, mismatched: Scores, *, seed: int = 0) -> NoiseRate:
    """Estimate the share of wrong pairs.

    Args:
        scores: of the given pairs, ``(n,)``; more is better.
        mismatched: of pairs that are known to be wrong, ``(m,)``, scored alike.
        seed: of the bootstrap.

    Raises:
        UsageError: there are no scores, or they are not finite.

    >>> random = np.random.default_rng(0)
    >>> scores = np.concatenate([random.normal(4, 1, 8000), random.normal(0, 1, 2000)])
    >>> found = noise(scores, random.normal(0, 1, 1000))
    >>> round(found.rate, 1), found.interval[0] < found.rate < found.interval[1]
    (0.2, True)
    """
    for name, values in (("scores", scores), ("mismatched", mismatched)):
        good = len(values) > 0 and bool(np.isfinite(values).all())
        check(good, f"{name}: expected finite numbers, got {len(values)} of which not all are, or none.")
    random, ranked = np.random.default_rng(seed), np.sort(scores)
    drawn = np.empty(DRAWS)
    for draw in range(DRAWS):
        again = mismatched[random.integers(0, len(mismatched), len(mismatched))]
        mark = _mark(again)
        # Of pairs drawn anew as many are below a mark as a binomial says: they need not be drawn themselves.
        below = random.binomial(len(ranked), _below(ranked, mark)) / len(ranked)
        drawn[draw] = min(1.0, below / (again <= mark).mean())
    low, high = np.quantile(drawn, ((1 - COVERED) / 2, (1 + COVERED) / 2))
    mark = _mark(mismatched)
    return NoiseRate(min(1.0, _below(ranked, mark) / float((mismatched <= mark).mean())), (float(low), float(high)))


def _mark(mismatched: Scores) -> float:
    """Return the score below which good pairs are taken to be few."""
    place = math.ceil(LOWER_PART * (len(mismatched) - 1))
    return float(np.partition(mismatched, place)[place])


def _below(ranked: Scores, mark: float) -> float:
    """Return the share of sorted scores that are at most so high."""
    return float(np.searchsorted(ranked, mark, side="right")) / len(ranked)


def false_discovery(scores: Scores, mismatched: Scores, rate: float) -> NDArray[np.float64]:
    """Return for each pair the share of good ones among all that score as low, ``(n,)``: an estimate, no guarantee.

    It is 1 - rate F0(s) / F(s), with the shares F0 of the mismatches and F of the pairs that score at most s, and made
    to rise with s.

    >>> false_discovery(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5]), 0.25).round(2).tolist()
    [0.5, 0.5, 0.67, 0.75]
    """
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    below = np.searchsorted(ranked, ranked, side="right") / len(scores)
    wrong = np.searchsorted(np.sort(mismatched), ranked, side="right") / len(mismatched)
    found = np.clip(1 - rate * wrong / below, 0, 1)
    values = np.empty(len(scores))
    values[order] = np.minimum.accumulate(found[::-1])[::-1]
    return values


def remembered(trained: Scores, fresh: Scores) -> float:
    """Return how often a mismatch that was trained on scores above one that was not, ties as halves: .5 is never known.

    >>> remembered(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ranked = np.sort(fresh)
    below = (np.searchsorted(ranked, trained, "left") + np.searchsorted(ranked, trained, "right")) / 2
    return float(below.mean() / len(fresh))
