"""Divergences: how far the plan that came out is from the plan that is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from contraport.objectives.coupling import Coupling
from contraport.objectives.targets import TargetPlan


class Divergence(Protocol):
    """A distance from a coupling to its target, written with the coupling's few questions and no matrix."""

    def __call__(self, target: TargetPlan, coupling: Coupling) -> Tensor:
        """Return the divergence, a tensor without dimensions."""


@dataclass(frozen=True)
class KL:
    """The generalised Kullback-Leibler divergence, sum t log(t / P) - sum t + sum P: nonnegative, zero where P = t.

    It is infinite where the target has mass and the plan has none.
    """

    def __call__(self, target: TargetPlan, coupling: Coupling) -> Tensor:
        """Return KL(target | coupling)."""
        target_mass = target.marginals()[0].sum()
        return -target.entropy() - coupling.inner_log(target) - target_mass + coupling.mass()
