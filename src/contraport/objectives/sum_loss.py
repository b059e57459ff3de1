"""Weighted sums of objectives as one loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from contraport.errors import UsageError, check, is_number
from contraport.objectives.constraints import Constraint
from contraport.objectives.objective import CallOption, Loss, Objective, add_to_term
from contraport.objectives.plan import BlockResult
from contraport.objectives.targets import Target


class SumLoss(Loss):
    """Weighted sum of objectives on the same views, for methods whose terms compare different pairs.

    Args:
        objectives: each objective with its weight; the temperature of the first is that of the sum.

    Raises:
        UsageError: there are no objectives, one is not an `Objective`, or a weight is not a finite number.

    >>> import contraport
    >>> SumLoss({contraport.nt_xent(): 1.0, contraport.gca_ince(): 0.5}).temperature
    0.5
    """

    def __init__(self, objectives: Mapping[Objective, float]) -> None:
        super().__init__()
        check(len(objectives) > 0, "objectives: must be at least one, got none.", "missing")
        for objective, factor in objectives.items():
            check(
                isinstance(objective, Objective), f"objectives: must be of type Objective, got {objective!r}.", "type"
            )
            good = is_number(factor) and math.isfinite(factor)
            check(good, f"objectives: must have finite numbers as weights, got {factor!r}.", "weight")
        self.objectives = nn.ModuleList(objectives)
        self.factors = tuple(objectives.values())
        self.multi_view = all(objective.multi_view for objective in objectives)
        self.has_core_view = all(objective.has_core_view for objective in objectives)
        self.compares_items = all(objective.compares_items for objective in objectives)
        self.has_negatives = any(objective.has_negatives for objective in objectives)
        self.requires_ids = any(objective.requires_ids for objective in objectives)
        self.stop_gradient = all(objective.stop_gradient for objective in objectives)

    def set_constraint(self, constraint: Constraint) -> None:
        """Raise `UsageError`: each objective has its own constraint."""
        message = f"constraint: can only be replaced in a single objective, got {self!r}."
        raise UsageError(message, kind="sum")

    def _weighted_objectives(self) -> Iterator[tuple[Objective, float]]:
        for module, factor in zip(self.objectives, self.factors, strict=True):
            assert isinstance(module, Objective)
            yield module, factor

    @property
    def _first(self) -> Objective:
        return next(self._weighted_objectives())[0]

    @property
    def temperature(self) -> float:
        """Temperature of the first objective; assign to it to change it between steps."""
        return self._first.temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        self._first.temperature = value

    @property
    def requires_weights(self) -> bool:
        return any(objective.requires_weights for objective, _ in self._weighted_objectives())

    def requires_features(self, target: Target | None = None) -> bool:
        return any(objective.requires_features(target) for objective, _ in self._weighted_objectives())

    def target_conflict(self, target: Target) -> str | None:
        return f"is a sum of objectives, each with its own target, and accepts no other; got {target!r}"

    @property
    def mass(self) -> float | None:
        """Mass of the first objective's plan in the last call; see `Objective.mass`."""
        return self._first.mass

    def compute_terms(self, *views: Tensor, **options: CallOption) -> dict[str, Tensor]:
        totals: dict[str, Tensor] = {}
        for objective, factor in self._weighted_objectives():
            for name, value in objective.compute_terms(*views, **options).items():
                add_to_term(totals, name, factor * value)
        return totals

    def solve_blocks(self, *views: Tensor, **options: CallOption) -> Iterator[BlockResult]:
        for objective, _ in self._weighted_objectives():
            yield from objective.solve_blocks(*views, **options)

    def describe_components(self) -> dict[str, str]:
        return {
            f"{position}. {question}": answer
            for position, (objective, _) in enumerate(self._weighted_objectives(), 1)
            for question, answer in objective.describe_components().items()
        }

    def __repr__(self) -> str:
        terms = ", ".join(f"{objective!r}: {factor!r}" for objective, factor in self._weighted_objectives())
        return f"SumLoss({{{terms}}})"
