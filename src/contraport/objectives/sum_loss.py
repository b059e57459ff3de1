"""A weighted sum of objectives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from contraport.errors import UsageError, check, is_number
from contraport.objectives.constraints import Constraint
from contraport.objectives.objective import CallOption, Loss, Objective, add_part
from contraport.objectives.plan import BlockResult
from contraport.objectives.targets import Target


class SumLoss(Loss):
    """A weighted sum of objectives over the same views, for methods whose parts compare different pairs.

    Args:
        objectives: each objective with its factor; the first one's temperature is the sum's.

    Raises:
        UsageError: there is none, one is no `Objective`, or a factor is no finite number.

    >>> import contraport
    >>> SumLoss({contraport.nt_xent(): 1.0, contraport.gca_ince(): 0.5}).temperature
    0.5
    """

    def __init__(self, objectives: Mapping[Objective, float]) -> None:
        super().__init__()
        check(len(objectives) > 0, "objectives: expected at least one.")
        for objective, factor in objectives.items():
            check(isinstance(objective, Objective), f"objectives: expected an Objective, got {objective!r}.")
            good = is_number(factor) and math.isfinite(factor)
            check(good, f"objectives: expected a finite number as factor, got {factor!r}.")
        self.objectives = nn.ModuleList(objectives)
        self.factors = tuple(objectives.values())
        self.multi_view = all(objective.multi_view for objective in objectives)
        self.has_core_view = all(objective.has_core_view for objective in objectives)
        self.compares_items = all(objective.compares_items for objective in objectives)
        self.has_negatives = any(objective.has_negatives for objective in objectives)
        self.requires_ids = any(objective.requires_ids for objective in objectives)
        self.stop_gradient = all(objective.stop_gradient for objective in objectives)

    def constrain(self, constraint: Constraint) -> None:
        """Raise `UsageError`: each objective has a constraint of its own."""
        raise UsageError(f"constraint: expected a single objective, whose constraint can change, got {self!r}.")

    def _terms(self) -> Iterator[tuple[Objective, float]]:
        for module, factor in zip(self.objectives, self.factors, strict=True):
            assert isinstance(module, Objective)
            yield module, factor

    @property
    def temperature(self) -> float:
        """The temperature of the first objective; assign to it to change it between steps."""
        return next(self._terms())[0].temperature

    @temperature.setter
    def temperature(self, value: float) -> None:
        next(self._terms())[0].temperature = value

    @property
    def requires_weights(self) -> bool:
        """Whether weights are the marginals of the plan of any of its objectives."""
        return any(objective.requires_weights for objective, _ in self._terms())

    def requires_features(self, target: Target | None = None) -> bool:
        """Return whether any of its objectives needs ``features=`` of the call."""
        return any(objective.requires_features(target) for objective, _ in self._terms())

    def mismatch(self, target: Target) -> str | None:
        """Return that there is no single target to stand in the place of."""
        return "is a sum of objectives, each of which wants its own; expected nothing"

    @property
    def mass(self) -> float | None:
        """The total mass of the first objective's plan in the last call; see `Objective.mass`."""
        return next(self._terms())[0].mass

    def parts(self, *views: Tensor, **known: CallOption) -> dict[str, Tensor]:
        """Return the parts of all objectives, factors included; see `forward` for the keywords."""
        totals: dict[str, Tensor] = {}
        for objective, factor in self._terms():
            for name, value in objective.parts(*views, **known).items():
                add_part(totals, name, factor * value)
        return totals

    def block_results(self, *views: Tensor, **known: CallOption) -> Iterator[BlockResult]:
        """Yield the outcomes of each objective in turn."""
        for objective, _ in self._terms():
            yield from objective.block_results(*views, **known)

    def answers(self) -> dict[str, str]:
        """Return the answers of each objective."""
        return {
            f"{position}. {question}": answer
            for position, (objective, _) in enumerate(self._terms(), 1)
            for question, answer in objective.answers().items()
        }

    def __repr__(self) -> str:
        terms = ", ".join(f"{objective!r}: {factor!r}" for objective, factor in self._terms())
        return f"SumLoss({{{terms}}})"
