"""Weights of items that the batch itself tells: how sure its balanced plan is that the views of an item are a pair."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from contraport._utils.spec import parse_spec
from contraport.engine import Kernel
from contraport.errors import UsageError, check
from contraport.objectives.constraints import Balanced
from contraport.objectives.transport import transport
from contraport.schedules import ScalarSchedule, parse_schedule

STRENGTH = 0.9
ITERATIONS = 20


@dataclass(frozen=True, eq=False)
class PlanWeights:
    """How much each item counts by the batch's own balanced plan: ``weights=PlanWeights()`` or ``weights="plan"`` in a
    call.

    In the balanced plan P of two views of n items each item has the mass 1/n to give, and n P_ii is the share that it
    gives to its own other view. The item counts as 1 - strength + strength n P_ii, which is held fixed: pairs that the
    rest of the batch contradicts count less. Of more than two views it is the mean over the pairs of views. The plan is
    that of the objective's kernel.

    Args:
        strength: from 0, where all count alike, to 1.
        iterations: of the plan, at least 1.
        given: what each item counts beside that, (n,), nonnegative; default: all alike.

    Raises:
        UsageError: a value is out of range.

    >>> import torch, contraport
    >>> z0, z1 = torch.eye(4), torch.eye(4)[[0, 1, 3, 2]]
    >>> rows = contraport.info_nce(0.2)(z0, z1, weights=contraport.PlanWeights(0.9), reduction="none")
    >>> [round(value, 1) for value in rows.tolist()]
    [0.0, 0.0, 1.0, 1.0]
    """

    strength: float = STRENGTH
    iterations: int = ITERATIONS
    given: Any = None

    def __post_init__(self) -> None:
        good = isinstance(self.strength, int | float) and 0 <= self.strength <= 1
        check(good, f"strength: expected a number from 0 to 1, got {self.strength!r}.")
        Balanced(self.iterations)  # it judges the number

    def __call__(self, views: tuple[Tensor, ...], kernel: Kernel) -> Tensor:
        """Return the weights of the items of some views, ``(n,)``, fixed.

        Args:
            views: of the items of all processes, ``(n, d)`` each.
            kernel: how alike two embeddings are.

        Raises:
            UsageError: there is one view.
        """
        check(len(views) > 1, "weights: the plan that tells them is between views; got one.")
        with torch.no_grad():
            shares = [self._share(z0, z1, kernel) for z0, z1 in combinations(views, 2)]
            weights = 1 - self.strength + self.strength * torch.stack(shares).mean(0)
        return weights.detach()  # forward mode takes no notice of no_grad

    def _share(self, z0: Tensor, z1: Tensor, kernel: Kernel) -> Tensor:
        items = torch.arange(len(z0), device=z0.device)
        plan = transport(z0, z1, kernel, Balanced(self.iterations)).plan
        return (len(z0) * plan.log_at(items, items).exp()).clamp(max=1)


def resolve_plan_weights(weights: object) -> PlanWeights | None:
    """Return the rule that weights stand for, or None where they are numbers.

    Raises:
        UsageError: a text that is no rule.
    """
    if isinstance(weights, str):
        check(weights == "plan", f"weights: expected a number for each item, or 'plan', got {weights!r}.")
        return PlanWeights()
    return weights if isinstance(weights, PlanWeights) else None


@dataclass(frozen=True)
class PlanWeightsSchedule:
    """`PlanWeights` over the steps of a training.

    >>> PlanWeightsSchedule(ScalarSchedule(0, 0.9, steps=100, shape="linear"), iterations=20).at(50)
    PlanWeights(strength=0.45, iterations=20, given=None)
    """

    strength: ScalarSchedule
    iterations: int

    def at(self, step: int) -> PlanWeights:
        """Return the rule of a step, counted from 0."""
        return PlanWeights(self.strength.value(step), self.iterations)


def parse_plan_weights(text: str, steps: int) -> PlanWeightsSchedule:
    """Return what ``"plan"``, ``"plan:0.5"`` or ``"plan:strength=0:0.9:linear,iterations=20"`` says.

    Raises:
        UsageError: an unknown setting, or a value that is out of range.

    >>> linear = parse_plan_weights("plan:0:0.5:linear", steps=100)
    >>> parse_plan_weights("plan", steps=100).at(0).strength, linear.at(50).strength
    (0.9, 0.25)
    """
    settings = parse_spec(
        "sample_weight", text, {"plan": ("strength", "iterations")}, default_setting={"plan": "strength"}
    ).settings
    start, end, shape = parse_schedule("sample_weight: strength", settings.get("strength", STRENGTH))
    iterations = settings.get("iterations", ITERATIONS)
    if not isinstance(iterations, int):
        raise UsageError(f"sample_weight: expected a whole number of iterations, got {iterations!r}.")
    for strength in (start, end):
        PlanWeights(strength, iterations)  # it judges the values
    return PlanWeightsSchedule(ScalarSchedule(start, end, steps, shape), iterations)
