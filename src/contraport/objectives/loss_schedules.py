"""Schedules of temperature, constraint and sample weights over training.

A schedule is a pure function of the step: `apply(loss, step)` sets one property and keeps no state, so that a resumed
run continues exactly. Steps are optimizer steps or epochs, whichever the loop counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from contraport._utils.formatting import NonDefaultsReprMixin
from contraport._utils.spec_parser import build_from_spec, parse_spec
from contraport.errors import UsageError, check_integer, check_type
from contraport.objectives.constraints import (
    Balanced,
    Columns,
    Constraint,
    DataBalanced,
    Free,
    Rows,
    Simplex,
    Tsallis,
    Unbalanced,
)
from contraport.objectives.loss import Loss
from contraport.objectives.transport_assignments_and_weights import WeightsFromPlan
from contraport.options import accept_deprecated_keywords, keep_deprecated_attributes
from contraport.schedules import RampSchedule, parse_start_end_shape, parse_temperature_schedule


class LossSchedule(Protocol):
    """Protocol of schedules that set a property of a loss at each step."""

    def apply(self, loss: Loss, step: int) -> None:
        """Set the scheduled property of a loss for a step, counted from 0."""


@dataclass(frozen=True, repr=False)
class TemperatureSchedule(NonDefaultsReprMixin, RampSchedule):
    """Temperature schedule by geometric interpolation between two values.

    Args:
        start: at step 0, positive.
        end: from step `steps` on, positive.
        steps: number of steps, at least 1.
        shape: ``"linear"``, ``"cosine"`` or ``"constant"``.

    Raises:
        UsageError: a value is out of range, or the shape is unknown.

    Source: the gradient epsilon of inverse optimal transport for contrastive learning.

    >>> schedule = TemperatureSchedule(0.5, 0.05, steps=10)
    >>> [round(schedule.value(step), 3) for step in (0, 5, 10, 99)]
    [0.5, 0.158, 0.05, 0.05]
    """

    geometric: bool = field(default=True, init=False, repr=False)

    @classmethod
    def parse(cls, text: float | str, steps: int) -> TemperatureSchedule:
        """Parse a temperature schedule, such as ``0.5``, ``"0.5:0.1"`` or ``"0.5:0.1:cosine"``.

        >>> TemperatureSchedule.parse("0.5:0.1", steps=100)
        TemperatureSchedule(start=0.5, end=0.1, steps=100)
        """
        schedule = parse_temperature_schedule(text, steps)
        return cls(schedule.start, schedule.end, schedule.steps, schedule.shape)

    def apply(self, loss: Loss, step: int) -> None:
        """Set the scheduled temperature of a loss for a step."""
        check_type("loss", loss, Loss, "nt_xent()")
        loss.temperature = self.value(step)


@accept_deprecated_keywords(every="steps_between_changes")
@keep_deprecated_attributes(every="steps_between_changes")
@dataclass(frozen=True, repr=False)
class Tighten(NonDefaultsReprMixin):
    """Constraint schedule: `Rows`, then `Balanced` with 1, 2, 4 and 8 Sinkhorn iterations.

    Args:
        steps_between_changes: number of steps with each constraint, at least 1; the last one stays.

    Raises:
        UsageError: fewer steps than 1; in `apply`, the loss has no single constraint, or does not support one of these.

    Source: inverse optimal transport for contrastive learning, eq. 18.

    >>> import contraport
    >>> loss = contraport.nt_xent()
    >>> for step in (0, 10, 25, 1000):
    ...     Tighten(steps_between_changes=10).apply(loss, step)
    ...     print(loss.constraint)
    Rows()
    Balanced(iterations=1)
    Balanced(iterations=2)
    Balanced(iterations=8)
    """

    constraints: ClassVar[tuple[Constraint, ...]] = (Rows(), Balanced(1), Balanced(2), Balanced(4), Balanced(8))

    steps_between_changes: int

    def __post_init__(self) -> None:
        check_integer("steps_between_changes", self.steps_between_changes)

    def apply(self, loss: Loss, step: int) -> None:
        """Set the scheduled constraint of a loss for a step."""
        check_type("loss", loss, Loss, "nt_xent()")
        last = len(self.constraints) - 1
        index = RampSchedule(0, last, steps=last * self.steps_between_changes, shape="linear").value(step)
        loss.set_constraint(self.constraints[int(index)])


@accept_deprecated_keywords(every="steps_between_changes")
@dataclass(frozen=True, repr=False)
class Loosen(Tighten):
    """Constraint schedule from `Balanced` to `Rows`, the reverse of `Tighten`.

    Source: inverse optimal transport for contrastive learning, eq. 18.
    """

    constraints: ClassVar[tuple[Constraint, ...]] = Tighten.constraints[::-1]


@dataclass(frozen=True, repr=False)
class ConstantConstraintSchedule(NonDefaultsReprMixin):
    """Constraint schedule that sets the same constraint at each step.

    Args:
        constraint: the constraint.

    >>> import contraport
    >>> loss = contraport.nt_xent()
    >>> ConstantConstraintSchedule(Balanced(3)).apply(loss, step=0)
    >>> loss.constraint
    Balanced(iterations=3)
    """

    constraint: Constraint

    def apply(self, loss: Loss, step: int) -> None:
        """Set the constraint of a loss, the same at every step."""
        loss.set_constraint(self.constraint)


CONSTRAINTS: dict[str, type[Constraint]] = {
    "free": Free,
    "simplex": Simplex,
    "rows": Rows,
    "columns": Columns,
    "balanced": Balanced,
    "data-balanced": DataBalanced,
    "unbalanced": Unbalanced,
    "tsallis": Tsallis,
}
"""Constraints available in training, by name."""

CONSTRAINT_SCHEDULES: dict[str, type[Tighten]] = {"tighten": Tighten, "relax": Loosen}
"""Constraint schedules available in training, by name."""


def parse_constraint_schedule(text: str, steps_per_unit: int) -> LossSchedule:
    """Parse the text of a constraint or of a constraint schedule.

    Args:
        text: ``"balanced:iterations=5"``, ``"unbalanced:relaxation=0.2,iterations=10"``, ``"rows"``,
            ``"tighten:every=10"`` and so on.
        steps_per_unit: number of steps in one unit of ``every``, such as those of an epoch.

    Raises:
        UsageError: a name is unknown, or a value is out of range.

    >>> parse_constraint_schedule("tighten:every=10", steps_per_unit=50)
    Tighten(steps_between_changes=500)
    >>> parse_constraint_schedule("balanced:iterations=3", steps_per_unit=50)
    ConstantConstraintSchedule(constraint=Balanced(iterations=3))
    """
    if text.partition(":")[0] in CONSTRAINT_SCHEDULES:
        name, settings = parse_spec("constraint", text, dict.fromkeys(CONSTRAINT_SCHEDULES, ("every",)))
        every = settings.get("every")
        if not isinstance(every, int) or every < 1:
            raise UsageError(f"constraint: must be {name}:every=N with an integer N >= 1, got {text!r}.", kind="every")
        return CONSTRAINT_SCHEDULES[name](every * steps_per_unit)
    classes: dict[str, Callable[..., Any]] = {**CONSTRAINTS, **CONSTRAINT_SCHEDULES}  # for the names in an error
    return ConstantConstraintSchedule(build_from_spec("constraint", text, classes))


def parse_sample_weight_schedule(text: str, steps: int) -> Callable[[int], WeightsFromPlan]:
    """Parse a sample-weight schedule into a function of the training step.

    It is ``"plan"``, ``"plan:0.5"`` or ``"plan:strength=0:0.9:linear,iterations=20"``.

    Raises:
        UsageError: an unknown setting, or a value that is out of range.

    >>> schedules = [parse_sample_weight_schedule(text, steps=100) for text in ("plan", "plan:0:0.5:linear")]
    >>> schedules[0](0).strength, schedules[1](50).strength
    (0.9, 0.25)
    """
    settings = parse_spec(
        "sample_weight", text, {"plan": ("strength", "iterations")}, unnamed_setting_by_name={"plan": "strength"}
    ).settings
    strength = settings.get("strength", WeightsFromPlan.strength)
    start, end, shape = parse_start_end_shape("sample_weight: strength", strength)
    iterations = settings.get("iterations", WeightsFromPlan.iterations)
    if not isinstance(iterations, int):
        raise UsageError(f"sample_weight: iterations must be an integer, got {iterations!r}.", kind="iterations")
    for strength in (start, end):
        WeightsFromPlan(strength, iterations)  # checks the values
    ramp = RampSchedule(start, end, steps, shape)
    return lambda step: WeightsFromPlan(ramp.value(step), iterations)
