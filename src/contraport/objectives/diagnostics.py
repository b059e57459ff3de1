"""Diagnostics of the last call of an objective: the mass of its plan and a bound on mutual information."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contraport.objectives.layouts import PairPattern


@dataclass
class Diagnostics:
    """Mass of the plan and mutual-information bound of one call of an objective.

    Reading a value synchronizes with the device; recording it does not.

    Attributes:
        log_masses: For each direction, log masses of the rows or columns, or 0.0, the log of a total mass that is 1 by
            construction; None where the solver computed neither.
        unweighted_patterns: Pair pattern of each direction, recorded for calls without weights and without a target.
    """

    log_masses: list[Tensor | float | None] = field(default_factory=list)
    unweighted_patterns: list[PairPattern] = field(default_factory=list)

    def mass(self) -> float | None:
        """Return the total mass of the plan, averaged over directions; None if no marginal is cached."""
        known = [v for v in self.log_masses if v is not None]
        masses = [v.exp().sum().item() if isinstance(v, Tensor) else math.exp(v) for v in known]
        return math.fsum(masses) / len(masses) if masses and len(masses) == len(self.log_masses) else None

    def mutual_information_bound(self, value: float) -> float | None:
        """Return the InfoNCE bound, log k minus the loss, k the number of candidates; None for weighted calls.

        It is None too if a row has several positives.
        """
        patterns = self.unweighted_patterns
        if not patterns or not all(pattern.one_positive_per_row for pattern in patterns):
            return None
        bounds = [pattern.block_weight * _mean_log_candidates(pattern) for pattern in patterns]
        return (math.fsum(bounds) - value) / math.fsum(pattern.block_weight for pattern in patterns)


def _mean_log_candidates(pattern: PairPattern) -> float:
    """Return the mean, over the rows, of the log of the number of compared columns."""
    counts = pattern.compared_pairs().row_counts(torch.empty(0, dtype=torch.float64, device=pattern.row_items.device))
    return float(counts.log().mean())
