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
        log_marginal_masses: Log masses of the rows or columns of each direction; None where the solver cached neither.
        unweighted_patterns: Pair pattern of each direction, recorded for calls without weights and without a target.
    """

    log_marginal_masses: list[Tensor | None] = field(default_factory=list)
    unweighted_patterns: list[PairPattern] = field(default_factory=list)

    def mass(self) -> float | None:
        """Return the total mass of the plan, averaged over directions; None if no marginal is cached."""
        cached = [v for v in self.log_marginal_masses if v is not None]
        complete = cached and len(cached) == len(self.log_marginal_masses)
        return torch.stack([v.exp().sum() for v in cached]).mean().item() if complete else None

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
