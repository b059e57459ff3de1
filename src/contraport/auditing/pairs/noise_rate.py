"""How many pairs are wrong, and which: from the scores of the pairs and of others that are known to be wrong.

The scores of the given pairs are a mixture: a share of them, the noise rate, are those of wrong pairs. Where the known
mismatches are scored as wrong pairs are, their scores say how the wrong ones are spread, and as good pairs seldom score
as low as many of the wrong ones do, the lower part of the mismatches' scores tells the share. The smaller that part,
the fewer good pairs score as low, and the fewer mismatches it is told by. So of some parts that one is taken whose
error the bootstrap finds least; off is what is above the least estimate of all, as good pairs can only add to it.

That the mismatches are scored as the wrong pairs are is all that matters. Pairs drawn anew after a training are not:
what was trained on is remembered, and scores higher. So a training that judges its own pairs has known mismatches among
them from the start (`contraport.auditing.pairs.decoys`), and a cross-fit judges pairs that no encoder has seen.

Source: Storey (2002), A direct approach to false discovery rates: the estimate is that of section 3, the choice of the
part that of section 9, with the scores of known mismatches in the place of p-values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contraport.errors import check
from contraport.seeding import generator

LOWER_PARTS = np.arange(0.4, 0.91, 0.05)
"""The parts of the mismatches' scores that are tried; fewer would be told by too few mismatches."""

DRAWS = 500
COVERED = 0.95

Scores = NDArray[np.floating]


class NoiseRate(NamedTuple):
    """The share of wrong pairs, and its bootstrap interval of 95 % over pairs and mismatches."""

    rate: float
    interval: tuple[float, float]


def estimate_noise_rate(scores: Scores, mismatched: Scores, *, seed: int = 0) -> NoiseRate:
    """Estimate the share of wrong pairs.

    Args:
        scores: of the given pairs, ``(n,)``; more is better.
        mismatched: of pairs that are known to be wrong, ``(m,)``, scored alike.
        seed: of the bootstrap.

    Raises:
        UsageError: there are no scores, or they are not finite.

    >>> random = np.random.default_rng(0)
    >>> scores = np.concatenate([random.normal(4, 1, 8000), random.normal(0, 1, 2000)])
    >>> found = estimate_noise_rate(scores, random.normal(0, 1, 1000))
    >>> round(found.rate, 1), found.interval[0] < found.rate < found.interval[1]
    (0.2, True)
    """
    for name, values in (("scores", scores), ("mismatched", mismatched)):
        good = len(values) > 0 and bool(np.isfinite(values).all())
        check(good, f"{name}: expected finite numbers, got {len(values)} of which not all are, or none.")
    random, ranked, again = generator("bootstrap.noise", seed), np.sort(scores), np.sort(mismatched)
    found = _shares(_below(ranked, _marks(again)), again)
    drawn = np.empty((DRAWS, len(LOWER_PARTS)))
    for draw in range(DRAWS):
        again = np.sort(mismatched[random.integers(0, len(mismatched), len(mismatched))])
        # Of pairs drawn anew as many are between two marks as a multinomial says: they need not be drawn themselves.
        between = np.diff(_below(ranked, _marks(again)), prepend=0, append=1)
        below = random.multinomial(len(ranked), between)[:-1].cumsum() / len(ranked)
        drawn[draw] = _shares(below, again)
    best = ((drawn - found.min()) ** 2).mean(axis=0).argmin()
    low, high = np.quantile(drawn[:, best], ((1 - COVERED) / 2, (1 + COVERED) / 2))
    return NoiseRate(float(found[best]), (float(low), float(high)))


def _marks(mismatched: Scores) -> Scores:
    """Return of sorted mismatches the score below which each part of them is."""
    marks: Scores = mismatched[np.ceil(LOWER_PARTS * (len(mismatched) - 1)).astype(int)]
    return marks


def _below(ranked: Scores, marks: Scores) -> NDArray[np.float64]:
    """Return the share of sorted scores that are at most as high as each mark."""
    return np.searchsorted(ranked, marks, side="right") / len(ranked)


def _shares(below: NDArray[np.float64], mismatched: Scores) -> NDArray[np.float64]:
    """Return the share of wrong pairs that each part tells, from the share of pairs below its mark."""
    shares: NDArray[np.float64] = below / _below(mismatched, _marks(mismatched))
    return shares.clip(max=1.0)


def estimate_fdr(scores: Scores, mismatched: Scores, rate: float) -> NDArray[np.float64]:
    """Return for each pair the share of good ones among all that score as low, ``(n,)``: an estimate, no guarantee.

    It is 1 - rate F0(s) / F(s), with the shares F0 of the mismatches and F of the pairs that score at most s, and made
    to rise with s.

    >>> estimate_fdr(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 0.5]), 0.25).round(2).tolist()
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


def above(first: Scores, second: Scores) -> float:
    """Return how often one of the first scores above one of the second, ties as halves: .5 where they score alike.

    >>> above(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ranked = np.sort(second)
    below = (np.searchsorted(ranked, first, "left") + np.searchsorted(ranked, first, "right")) / 2
    return float(below.mean() / len(second))
