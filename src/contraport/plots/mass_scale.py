"""Logarithmic color scale of transport plans, and the share of mass on target."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

Masses = np.ndarray[Any, Any]

DECADES = 5
"""Powers of ten that the color scale of a plan covers at most, down from its largest cell."""


class LogScale(NamedTuple):
    """Logarithmic color scale of transport masses, given by its two ends.

    Attributes:
        log10_low: log10 of the mass at the low end.
        log10_high: log10 of the mass at the high end.
    """

    log10_low: float
    log10_high: float

    @classmethod
    def from_matrices(cls, matrices: Iterable[Masses]) -> LogScale | None:
        """Return the color scale that covers several plans and targets, or None if all masses are zero.

        >>> LogScale.from_matrices([np.eye(2) / 2, np.full((2, 2), 1e-9)])
        LogScale(log10_low=-5.301..., log10_high=-0.301...)
        """
        masses = [matrix[matrix > 0] for matrix in matrices]
        masses = [mass for mass in masses if mass.size]
        if not masses:
            return None
        high = math.log10(max(float(mass.max()) for mass in masses))
        return cls(max(math.log10(min(float(mass.min()) for mass in masses)), high - DECADES), high)

    @property
    def power_ticks(self) -> list[tuple[int, float]]:
        """Exponents of the powers of ten on the scale, each with its position from 0 to 1."""
        powers = range(math.ceil(self.log10_low), math.floor(self.log10_high) + 1)
        return [(power, (power - self.log10_low) / ((self.log10_high - self.log10_low) or 1)) for power in powers]


def clipped_log10(mass: Masses, scale: LogScale, *, without_self: bool = False) -> Masses:
    """Return log10 of masses, clipped at the low end of the scale; NaN on the diagonal if `without_self`."""
    logs = np.log10(np.maximum(mass, 10**scale.log10_low)).astype(np.float32)
    if without_self:
        np.fill_diagonal(logs, np.nan)
    return logs


def share_on_target(plan: Masses, target: Masses) -> float:
    """Return the share of a plan's mass that lies where the target is positive; 0 for an empty plan.

    >>> share_on_target(np.array([[3.0, 1.0]]), np.array([[1.0, 0.0]]))
    0.75
    """
    mass = plan.sum()
    return float(plan[target > 0].sum() / mass) if mass > 0 else 0.0


def excludes_self_pairs(plan: Masses, target: Masses) -> bool:
    """Return whether plan and target are square with an empty diagonal, so that self pairs are excluded."""
    square = plan.shape[0] == plan.shape[1] > 1
    return square and not np.diag(plan).any() and not np.diag(target).any()
