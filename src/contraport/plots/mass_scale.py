"""What is told of a plan beside its target, in numbers: the scale of its colours, and its share on target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

Masses = np.ndarray[Any, Any]

DECADES = 5
"""How far below its largest cell the colour scale of a plan reaches."""


class Scale(NamedTuple):
    """The decimal logarithms of the masses at the ends of the colour scale."""

    low: float
    high: float

    @classmethod
    def of(cls, matrices: Iterable[Masses]) -> Scale | None:
        """Return the one scale of some plans and targets; none where none of them has any mass.

        >>> Scale.of([np.eye(2) / 2, np.full((2, 2), 1e-9)])
        Scale(low=-5.301..., high=-0.301...)
        """
        masses = [matrix[matrix > 0] for matrix in matrices]
        masses = [mass for mass in masses if mass.size]
        if not masses:
            return None
        high = math.log10(max(float(mass.max()) for mass in masses))
        return cls(max(math.log10(min(float(mass.min()) for mass in masses)), high - DECADES), high)

    @property
    def ticks(self) -> list[tuple[int, float]]:
        """The whole powers of ten on the scale, and how far along it each lies, from 0 to 1."""
        powers = range(math.ceil(self.low), math.floor(self.high) + 1)
        return [(power, (power - self.low) / ((self.high - self.low) or 1)) for power in powers]


def log_masses(mass: Masses, scale: Scale, *, without_self: bool = False) -> Masses:
    """Return the decimal logarithms of masses, what is below the scale at its end; of self pairs, excluded, NaN."""
    shown = np.log10(np.maximum(mass, 10**scale.low)).astype(np.float32)
    if without_self:
        np.fill_diagonal(shown, np.nan)
    return shown


def share_on_target(plan: Masses, target: Masses) -> float:
    """Return how much of the mass of a plan is where its target has some; nothing of a plan that has let all go.

    >>> share_on_target(np.array([[3.0, 1.0]]), np.array([[1.0, 0.0]]))
    0.75
    """
    mass = plan.sum()
    return float(plan[target > 0].sum() / mass) if mass > 0 else 0.0


def excludes_self_pairs(plan: Masses, target: Masses) -> bool:
    """Return whether rows and columns are the same embeddings, of which no pair with itself is compared."""
    square = plan.shape[0] == plan.shape[1] > 1
    return square and not np.diag(plan).any() and not np.diag(target).any()
