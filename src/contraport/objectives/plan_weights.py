"""Plan weights: weights of items from the balanced plan of a batch, the confidence that their views match."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from contraport._utils.spec_parser import parse_spec
from contraport.engine import Kernel
from contraport.errors import UsageError, check, is_number
from contraport.objectives.constraints import Balanced
from contraport.objectives.transport import transport
from contraport.options import accept_deprecated_fields
from contraport.schedules import RampSchedule, parse_schedule

STRENGTH = 0.9
ITERATIONS = 20


@accept_deprecated_fields(item_weights="given")
@dataclass(frozen=True, eq=False)
class PlanWeights:
    """Weights of items or pairs from the balanced plan of the batch: ``weights=PlanWeights()`` or ``weights="plan"``.

    In the balanced plan P of two views of n items, each item has mass 1/n, and n P_ii is the share that goes to its own
    other view. The weight of the item is 1 - strength + strength n P_ii, detached: pairs that the rest of the batch
    contradicts count less. With more than two views it is the mean over the pairs of views. The plan is that of the
    objective's kernel.

    Args:
        strength: from 0, equal weights, to 1.
        iterations: number of Sinkhorn iterations, at least 1.
        item_weights: further factor of each item, (n,), nonnegative; default: 1.

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
    item_weights: Any = None

    def __post_init__(self) -> None:
        good = is_number(self.strength) and 0 <= self.strength <= 1
        check(good, f"strength: must be a number from 0 to 1, got {self.strength!r}.")
        Balanced(self.iterations)  # checks the number

    def __call__(self, views: tuple[Tensor, ...], kernel: Kernel) -> Tensor:
        """Return the weight of each item, ``(n,)``, detached.

        Args:
            views: of the items of all processes, ``(n, d)`` each.
            kernel: of the plan.

        Raises:
            UsageError: there is a single view.
        """
        check(len(views) > 1, "weights: 'plan' requires two or more views, got one.", "single_view")
        with torch.no_grad():
            shares = [self._share(z0, z1, kernel) for z0, z1 in combinations(views, 2)]
            weights = 1 - self.strength + self.strength * torch.stack(shares).mean(0)
        return weights.detach()  # forward-mode differentiation ignores no_grad

    def _share(self, z0: Tensor, z1: Tensor, kernel: Kernel) -> Tensor:
        items = torch.arange(len(z0), device=z0.device)
        plan = transport(z0, z1, kernel, Balanced(self.iterations)).plan
        # Row masses are met only approximately after a few iterations, so that a share can exceed 1.
        return (len(z0) * plan.log_at(items, items).exp()).clamp(max=1)


def resolve_plan_weights(weights: object) -> PlanWeights | None:
    """Return `PlanWeights` if the weights are ``"plan"`` or a `PlanWeights`; None if they are numbers.

    Raises:
        UsageError: an unknown text.
    """
    if isinstance(weights, str):
        check(weights == "plan", f"weights: must be one number per item, or 'plan', got {weights!r}.", "unknown")
        return PlanWeights()
    return weights if isinstance(weights, PlanWeights) else None


@dataclass(frozen=True)
class PlanWeightsSchedule:
    """Schedule of the strength of `PlanWeights` over the steps of a training.

    >>> PlanWeightsSchedule(RampSchedule(0, 0.9, steps=100, shape="linear"), iterations=20).weights_at(50)
    PlanWeights(strength=0.45, iterations=20, item_weights=None)
    """

    strength: RampSchedule
    iterations: int

    def weights_at(self, step: int) -> PlanWeights:
        """Return the `PlanWeights` at a step, counted from 0."""
        return PlanWeights(self.strength.value(step), self.iterations)


def parse_plan_weights_schedule(text: str, steps: int) -> PlanWeightsSchedule:
    """Parse a schedule of plan weights: ``"plan"``, ``"plan:0.5"`` or ``"plan:strength=0:0.9:linear,iterations=20"``.

    Raises:
        UsageError: an unknown setting, or a value that is out of range.

    >>> schedules = [parse_plan_weights_schedule(text, steps=100) for text in ("plan", "plan:0:0.5:linear")]
    >>> schedules[0].weights_at(0).strength, schedules[1].weights_at(50).strength
    (0.9, 0.25)
    """
    settings = parse_spec(
        "sample_weight", text, {"plan": ("strength", "iterations")}, default_setting={"plan": "strength"}
    ).settings
    start, end, shape = parse_schedule("sample_weight: strength", settings.get("strength", STRENGTH))
    iterations = settings.get("iterations", ITERATIONS)
    if not isinstance(iterations, int):
        raise UsageError(f"sample_weight: iterations must be an integer, got {iterations!r}.", kind="iterations")
    for strength in (start, end):
        PlanWeights(strength, iterations)  # checks the values
    return PlanWeightsSchedule(RampSchedule(start, end, steps, shape), iterations)
