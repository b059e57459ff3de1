"""Schedules: the temperature and the allowed set as functions of training progress.

A schedule is a pure function of the step: `apply(loss, step)` sets what it governs and nothing is remembered, so that a
resumed run continues exactly. Steps may be counted in optimiser steps or epochs, whichever the loop counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contraport._utils.spec import parse_spec
from contraport.errors import UsageError, check_integer
from contraport.objectives.constraints import (
    Balanced,
    Columns,
    Constraint,
    Free,
    Rows,
    Simplex,
    Tsallis,
    Unbalanced,
)
from contraport.objectives.objective import Loss
from contraport.objectives.repr_mixin import ReprMixin
from contraport.schedules import ScalarSchedule, parse_temperature


class LossSchedule(Protocol):
    """Sets one property of a loss from the step alone."""

    def apply(self, loss: Loss, step: int) -> None:
        """Set the property for a step, counted from 0."""


@dataclass(frozen=True, repr=False)
class TemperatureSchedule(ReprMixin):
    """A temperature that goes from one value to another, geometrically, so that equal steps are equal factors.

    Args:
        start: at step 0, positive.
        end: from step `steps` on, positive.
        steps: how many steps the way takes, at least 1.
        shape: ``"linear"``, ``"cosine"`` or ``"constant"``.

    Raises:
        UsageError: a value is out of range, or the shape has an unknown name.

    Source: the gradient epsilon of inverse optimal transport for contrastive learning.

    >>> schedule = TemperatureSchedule(0.5, 0.05, steps=10)
    >>> [round(schedule.value(step), 3) for step in (0, 5, 10, 99)]
    [0.5, 0.158, 0.05, 0.05]
    """

    start: float
    end: float
    steps: int
    shape: str = "cosine"

    def __post_init__(self) -> None:
        self._course()  # it judges the values

    @classmethod
    def parse(cls, text: float | str, steps: int) -> TemperatureSchedule:
        """Return what a number, ``"start:end"`` or ``"start:end:shape"`` says.

        >>> Temperature.parse("0.5:0.1", steps=100)
        TemperatureSchedule(start=0.5, end=0.1, steps=100)
        """
        course = parse_temperature(text, steps)
        return cls(course.start, course.end, course.steps, course.shape)

    def value(self, step: int) -> float:
        """Return the temperature at a step."""
        return self._course().value(step)

    def apply(self, loss: Loss, step: int) -> None:
        """Set the temperature of a loss for a step."""
        loss.temperature = self.value(step)

    def _course(self) -> ScalarSchedule:
        return ScalarSchedule(self.start, self.end, self.steps, self.shape, geometric=True)


@dataclass(frozen=True, repr=False)
class Tighten(ReprMixin):
    """An allowed set that narrows: rows only, then balanced by 1, 2, 4 and 8 iterations, at a fixed interval.

    Args:
        every: steps that each allowed set is kept, at least 1.

    Raises:
        UsageError: every is below 1; in `apply`, the loss has no single constraint, or one that does not go with it.

    Source: inverse optimal transport for contrastive learning, eq. 18.

    >>> import contraport
    >>> loss = contraport.nt_xent()
    >>> for step in (0, 10, 25, 1000):
    ...     Tighten(every=10).apply(loss, step)
    ...     print(loss.constraint)
    Rows()
    Balanced(iterations=1)
    Balanced(iterations=2)
    Balanced(iterations=8)
    """

    every: int

    def __post_init__(self) -> None:
        check_integer("every", self.every)

    def _sets(self) -> Sequence[Constraint]:
        return _NARROWING

    def apply(self, loss: Loss, step: int) -> None:
        """Set the allowed set of a loss for a step."""
        sets = self._sets()
        last = len(sets) - 1
        loss.constrain(sets[int(ScalarSchedule(0, last, steps=last * self.every, shape="linear").value(step))])


@dataclass(frozen=True, repr=False)
class Loosen(Tighten):
    """An allowed set that widens: the reverse of `Tighten`.

    Source: inverse optimal transport for contrastive learning, eq. 18.
    """

    def _sets(self) -> Sequence[Constraint]:
        return _NARROWING[::-1]


@dataclass(frozen=True, repr=False)
class FixedConstraint(ReprMixin):
    """One allowed set throughout, whatever the objective's own is.

    Args:
        constraint: which plans are allowed.

    >>> import contraport
    >>> loss = contraport.nt_xent()
    >>> FixedConstraint(Balanced(3)).apply(loss, step=0)
    >>> loss.constraint
    Balanced(iterations=3)
    """

    constraint: Constraint

    def apply(self, loss: Loss, step: int) -> None:
        """Set the allowed set of a loss."""
        loss.constrain(self.constraint)


CONSTRAINTS: dict[str, type[Constraint]] = {
    "free": Free,
    "simplex": Simplex,
    "rows": Rows,
    "columns": Columns,
    "balanced": Balanced,
    "unbalanced": Unbalanced,
    "tsallis": Tsallis,
}
"""The constraints that can be trained under, by name."""

CONSTRAINT_SCHEDULES: dict[str, type[Tighten]] = {"tighten": Tighten, "relax": Loosen}
"""The courses of the constraint by name."""


def parse_constraint(text: str, unit: int) -> LossSchedule:
    """Return what the name of a constraint or of a course says, with its settings after a colon.

    Args:
        text: ``"balanced:iterations=5"``, ``"unbalanced:relaxation=0.2,iterations=10"``, ``"rows"``,
            ``"tighten:every=10"`` and so on.
        unit: how many steps the interval of a course counts as one, such as those of an epoch.

    Raises:
        UsageError: a name is unknown, or a value does not fit.

    >>> parse_constraint("tighten:every=10", unit=50)
    Tighten(every=500)
    >>> parse_constraint("balanced:iterations=3", unit=50)
    Constrained(constraint=Balanced(iterations=3))
    """
    known = {
        name: list(inspect.signature(made).parameters) for name, made in {**CONSTRAINTS, **CONSTRAINT_SCHEDULES}.items()
    }
    name, settings = parse_spec("constraint", text, known)
    if name in CONSTRAINT_SCHEDULES:
        every = settings.get("every")
        if not isinstance(every, int) or every < 1:
            raise UsageError(f"constraint: expected {name}:every=N, N a whole number from 1 on, got {text!r}.")
        return CONSTRAINT_SCHEDULES[name](every * unit)
    chosen: dict[str, Any] = settings
    return FixedConstraint(CONSTRAINTS[name](**chosen))


_NARROWING: tuple[Constraint, ...] = (Rows(), Balanced(1), Balanced(2), Balanced(4), Balanced(8))
