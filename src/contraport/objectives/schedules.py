"""Schedules: the temperature and the allowed set as functions of training progress.

A schedule is a pure function of the step: `apply(loss, step)` sets what it governs and nothing is remembered, so that a
resumed run continues exactly. Steps may be counted in optimiser steps or epochs, whichever the loop counts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from contraport.errors import check, check_positive, unknown_name
from contraport.objectives.answer import Answer
from contraport.objectives.constraints import (
    Balanced,
    Columns,
    Constraint,
    Free,
    Quadratic,
    Rows,
    Simplex,
    Unbalanced,
)
from contraport.objectives.loss import Loss

SHAPES: dict[str, Callable[[float], float]] = {
    "constant": lambda x: 0.0,
    "linear": lambda x: x,
    "cosine": lambda x: (1 - math.cos(math.pi * x)) / 2,
}
"""How a schedule goes from its start (0) to its end (1) as progress x goes from 0 to 1."""


def parse_course(argument: str, text: float | str) -> tuple[float, float, str]:
    """Read the start, the end and the shape of a course: ``"start:end:shape"``, ``"start:end"`` or a lone number.

    Raises:
        UsageError: it is none of these, or the shape has an unknown name; the message names the argument.

    >>> parse_course("temperature", "0.5:0.1:linear"), parse_course("momentum", 0.99)
    ((0.5, 0.1, 'linear'), (0.99, 0.99, 'constant'))
    """
    words = str(text).split(":")
    try:
        numbers = [float(word) for word in words[:2]]
    except ValueError:
        numbers = []
    check(
        len(words) <= 3 and len(numbers) == min(len(words), 2),
        f"{argument}: expected a number, or start:end:shape such as 0.5:0.1:cosine, got {text!r}.",
    )
    shape = (*words, "cosine")[2] if len(words) > 1 else "constant"
    if shape not in SHAPES:
        raise unknown_name(f"{argument}: shape", shape, SHAPES)
    return numbers[0], numbers[-1], shape


class Schedule(Protocol):
    """Sets one property of a loss from the step alone."""

    def apply(self, loss: Loss, step: int) -> None:
        """Set the property for a step, counted from 0."""


@dataclass(frozen=True, repr=False)
class Temperature(Answer):
    """A temperature that goes from one value to another, geometrically, so that equal steps are equal factors.

    Args:
        start: at step 0, positive.
        end: from step `steps` on, positive.
        steps: how many steps the way takes, at least 1.
        shape: ``"linear"``, ``"cosine"`` or ``"constant"``.

    Raises:
        UsageError: a value is out of range, or the shape has an unknown name.

    Source: the gradient epsilon of inverse optimal transport for contrastive learning.

    >>> schedule = Temperature(0.5, 0.05, steps=10)
    >>> [round(schedule.value(step), 3) for step in (0, 5, 10, 99)]
    [0.5, 0.158, 0.05, 0.05]
    """

    start: float
    end: float
    steps: int
    shape: str = "cosine"

    def __post_init__(self) -> None:
        check_positive("start", self.start)
        check_positive("end", self.end)
        check(self.steps >= 1, f"steps: expected at least 1, got {self.steps!r}.")
        if self.shape not in SHAPES:
            raise unknown_name("shape", self.shape, SHAPES)

    @classmethod
    def parse(cls, text: float | str, steps: int) -> Temperature:
        """Return what a number, ``"start:end"`` or ``"start:end:shape"`` says.

        >>> Temperature.parse("0.5:0.1", steps=100)
        Temperature(start=0.5, end=0.1, steps=100)
        """
        start, end, shape = parse_course("temperature", text)
        for value in (start, end):
            check_positive("temperature", value)
        return cls(start, end, steps, shape)

    def value(self, step: int) -> float:
        """Return the temperature at a step."""
        progress = SHAPES[self.shape](min(step / self.steps, 1.0))
        return float(self.start ** (1 - progress) * self.end**progress)

    def apply(self, loss: Loss, step: int) -> None:
        """Set the temperature of a loss for a step."""
        loss.temperature = self.value(step)


@dataclass(frozen=True, repr=False)
class Tighten(Answer):
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
        check(self.every >= 1, f"every: expected at least 1, got {self.every!r}.")

    def _sets(self) -> Sequence[Constraint]:
        return _NARROWING

    def apply(self, loss: Loss, step: int) -> None:
        """Set the allowed set of a loss for a step."""
        sets = self._sets()
        loss.constrain(sets[min(step // self.every, len(sets) - 1)])


@dataclass(frozen=True, repr=False)
class Relax(Tighten):
    """An allowed set that widens: the reverse of `Tighten`.

    Source: inverse optimal transport for contrastive learning, eq. 18.
    """

    def _sets(self) -> Sequence[Constraint]:
        return _NARROWING[::-1]


@dataclass(frozen=True, repr=False)
class Constrained(Answer):
    """One allowed set throughout, whatever the objective's own is.

    Args:
        constraint: which plans are allowed.

    >>> import contraport
    >>> loss = contraport.nt_xent()
    >>> Constrained(Balanced(3)).apply(loss, step=0)
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
    "quadratic": Quadratic,
}
"""The constraints that can be trained under, by name."""

COURSES: dict[str, type[Tighten]] = {"tighten": Tighten, "relax": Relax}
"""The courses of the constraint by name."""


def parse_constraint(text: str, unit: int) -> Schedule:
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
    name, _, rest = str(text).partition(":")
    if name in COURSES:
        key, _, value = rest.partition("=")
        good = key == "every" and value.isdecimal() and int(value) >= 1
        check(good, f"constraint: expected {name}:every=N, N a whole number from 1 on, got {text!r}.")
        return COURSES[name](int(value) * unit)
    if name not in CONSTRAINTS:
        raise unknown_name("constraint", name, [*CONSTRAINTS, *COURSES])
    known = inspect.signature(CONSTRAINTS[name]).parameters
    settings: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        check(bool(equals), f"constraint: expected {name}:setting=value, got {text!r}.")
        if key not in known:
            raise unknown_name(f"constraint: setting of {name}", key, known)
        settings[key] = _read(value)
    return Constrained(CONSTRAINTS[name](**settings))


def _read(value: str) -> float | str:
    """Return the number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


_NARROWING: tuple[Constraint, ...] = (Rows(), Balanced(1), Balanced(2), Balanced(4), Balanced(8))
