"""Diagnostics of the last call of an objective: the mass of its plan and a bound of mutual information."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contraport.objectives.layouts import PairPattern


@dataclass
class Diagnostics:
    """Mass and information of one call; nothing waits for the device before they are read.

    Attributes:
        log_masses: of each direction, of rows or columns, where finding the plan has left them known.
        patterns: of each direction of a call without weights and without a target of its own.
    """

    log_masses: list[Tensor | None] = field(default_factory=list)
    patterns: list[PairPattern] = field(default_factory=list)

    def mass(self) -> float | None:
        """Return the mass of the plan, a mean over directions; None where no marginal is known."""
        known = [v for v in self.log_masses if v is not None]
        complete = known and len(known) == len(self.log_masses)
        return torch.stack([v.exp().sum() for v in known]).mean().item() if complete else None

    def information(self, value: float) -> float | None:
        """Return log k less the value of an InfoNCE.

        It is None where the call was not plain, or a row has several positives.
        """
        patterns = self.patterns
        if not patterns or not all(pattern.one_positive_per_row for pattern in patterns):
            return None
        bounds = [pattern.weight * _log_candidates(pattern) for pattern in patterns]
        return (math.fsum(bounds) - value) / math.fsum(pattern.weight for pattern in patterns)


def _log_candidates(pattern: PairPattern) -> float:
    """Return the mean over the rows of the log of how many columns each is compared with."""
    counts = pattern.compared().counts(torch.empty(0, dtype=torch.float64, device=pattern.row_items.device))
    return float(counts.log().mean())
