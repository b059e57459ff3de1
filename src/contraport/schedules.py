"""Scalar schedules of temperature, momentum and learning rate over training steps.

A schedule is a function of the step alone and has no state, so that a resumed run continues exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from contraport.errors import check, check_finite, check_integer, check_name, check_nonnegative, check_positive

RAMP_FUNCTION_BY_SHAPE: dict[str, Callable[[float], float]] = {
    "constant": lambda x: 0.0,
    "linear": lambda x: x,
    "cosine": lambda x: (1 - math.cos(math.pi * x)) / 2,
}
"""Shapes of ramps by name: functions from progress, 0 to 1, to the position between start (0) and end (1)."""


@dataclass(frozen=True)
class RampSchedule:
    """Schedule that moves from `start` to `end`, then stays constant.

    Args:
        start: value at step 0.
        end: value from step `steps` on, unless the shape is ``"constant"``.
        steps: number of steps from start to end, at least 1.
        shape: ``"linear"``, ``"cosine"`` or ``"constant"``.
        geometric: interpolate the logarithm of the value; start and end must be positive.

    Raises:
        UsageError: a value is out of range, or the shape is unknown.

    >>> [RampSchedule(0.9, 1, steps=10).value(step) for step in (0, 5, 10, 99)]
    [0.9, 0.95, 1.0, 1.0]
    >>> [round(RampSchedule(1, 0.01, steps=10, shape="linear", geometric=True).value(step), 3) for step in (0, 5, 10)]
    [1.0, 0.1, 0.01]
    """

    start: float
    end: float
    steps: int
    shape: str = "cosine"
    geometric: bool = False

    def __post_init__(self) -> None:
        check_integer("steps", self.steps)
        check_finite("start", self.start)
        check_finite("end", self.end)
        check_name("shape", self.shape, RAMP_FUNCTION_BY_SHAPE)
        if self.geometric:
            check_positive("start", self.start)
            check_positive("end", self.end)

    def value(self, step: int) -> float:
        """Return the value of the schedule at a step, counted from 0."""
        check_nonnegative("step", step)
        progress = RAMP_FUNCTION_BY_SHAPE[self.shape](min(step / self.steps, 1.0))
        if self.geometric:
            return float(self.start ** (1 - progress) * self.end**progress)
        return self.start + (self.end - self.start) * progress


def parse_start_end_shape(argument: str, text: float | str) -> tuple[float, float, str]:
    """Parse a schedule ``"start:end:shape"`` or number into its three parts.

    >>> parse_start_end_shape("temperature", "0.5:0.1:linear"), parse_start_end_shape("momentum", 0.99)
    ((0.5, 0.1, 'linear'), (0.99, 0.99, 'constant'))
    """
    words = str(text).split(":")
    try:
        numbers = [float(word) for word in words[:2]]
    except ValueError:
        numbers = []
    learned = ", or learn:START" if argument == "temperature" else ""
    message = f"{argument}: must be a number or start:end:shape, such as 0.5:0.1:cosine{learned}, got {text!r}."
    check(len(words) <= 3 and len(numbers) == min(len(words), 2), message, "format")
    shape = (*words, "cosine")[2] if len(words) > 1 else "constant"
    check_name(f"{argument}: shape", shape, RAMP_FUNCTION_BY_SHAPE)
    return numbers[0], numbers[-1], shape


def is_learned_temperature(text: object) -> bool:
    """Return whether the option `temperature` is a learned one, such as ``learn:0.07``.

    >>> is_learned_temperature("learn:0.07"), is_learned_temperature("0.5:0.1")
    (True, False)
    """
    return str(text).partition(":")[0] == "learn"


def parse_learned_temperature_start(learn_spec: str) -> float | None:
    """Return the initial value of a learned temperature, or None if not given.

    >>> parse_learned_temperature_start("learn"), parse_learned_temperature_start("learn:0.07")
    (None, 0.07)
    """
    _, colon, start = str(learn_spec).partition(":")
    if not colon:
        return None
    try:
        number = float(start)
    except ValueError:
        number = -1.0
    message = f"temperature: must be learn or learn:START with a positive START, got {learn_spec!r}."
    check(0 < number < math.inf, message)
    return number


def parse_temperature_schedule(text: float | str, steps: int) -> RampSchedule:
    """Parse a temperature schedule such as ``"0.5:0.1"``, geometric in the temperature.

    >>> round(parse_temperature_schedule("0.5:0.1", steps=100).value(50), 3)
    0.224
    """
    start, end, shape = parse_start_end_shape("temperature", text)
    for value in (start, end):
        check_positive("temperature", value)
    return RampSchedule(start, end, steps, shape, geometric=True)


def parse_momentum_schedule(text: float | str, steps: int) -> RampSchedule:
    """Parse a momentum encoder's schedule, such as ``"0.996:1:cosine"``.

    Raises:
        UsageError: another format, a value outside [0, 1], or a start of 1, with which the encoder never moves.

    Source: Grill et al. (2020), Bootstrap your own latent (BYOL), section 3.2, for the cosine from 0.996 to 1.

    >>> [round(parse_momentum_schedule("0.9:1:cosine", steps=10).value(step), 3) for step in (0, 5, 10, 99)]
    [0.9, 0.95, 1.0, 1.0]
    """
    start, end, shape = parse_start_end_shape("momentum", text)
    check(0 <= start < 1 and 0 <= end <= 1, f"momentum: must be >= 0 and < 1 (a schedule may end at 1), got {text!r}.")
    return RampSchedule(start, end, steps, shape)
