"""What the last call of an objective has left to be told beside its value: its mass and its information."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from contraport.objectives.layouts import Pattern
from contraport.objectives.outcome import Outcome


class LastCall:
    """What is kept of a call: nothing waits for the device before it is asked for."""

    def __init__(self) -> None:
        self._log_masses: list[Tensor | None] = []
        self._patterns: list[Pattern] = []

    def begin(self) -> None:
        """Forget the call before."""
        # New lists: torch.compile would guard what is in the old ones, and compile the second call once more.
        self._log_masses = []
        self._patterns = []

    def note(self, outcome: Outcome, *, plain: bool) -> None:
        """Keep what tells of one direction; a call is plain where it had no weights and no target of its own."""
        if plain and not torch.compiler.is_compiling():
            self._patterns.append(outcome.block.pattern)
        log_mass = outcome.plan.known_log_marginal
        self._log_masses.append(None if log_mass is None else _unlinked(log_mass))

    def mass(self) -> float | None:
        """Return the mass of the plan, a mean over directions; None where no marginal tells it."""
        known = [v for v in self._log_masses if v is not None]
        complete = known and len(known) == len(self._log_masses)
        return torch.stack([v.exp().sum() for v in known]).mean().item() if complete else None

    def information(self, value: float) -> float | None:
        """Return log k less the value of an InfoNCE.

        It is None where the call was not plain, or a row has several positives.
        """
        told = self._patterns
        if not told or not all(pattern.one_each for pattern in told):
            return None
        bounds = [pattern.weight * _log_candidates(pattern) for pattern in told]
        return (math.fsum(bounds) - value) / math.fsum(pattern.weight for pattern in told)


def _log_candidates(pattern: Pattern) -> float:
    """Return the mean over the rows of the log of how many columns each is compared with."""
    counts = pattern.compared().counts(torch.empty(0, dtype=torch.float64, device=pattern.row_items.device))
    return float(counts.log().mean())


def _unlinked(value: Tensor) -> Tensor:
    return value.detach() if value.requires_grad else value
