"""Two networks that learn from each other: the one in training predicts, the other follows it slowly."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from contraport.encoders import Model, Projector
from contraport.errors import check
from contraport.objectives.schedules import SHAPES, parse_course

PREDICTOR_HIDDEN = 512


@dataclass(frozen=True)
class Momentum:
    """How much of itself the target keeps at each step, as a function of the step alone.

    Args:
        start: at step 0, in [0, 1).
        end: from step `steps` on, in [0, 1]; 1 stands still.
        steps: how many steps the way takes, at least 1.
        shape: ``"linear"``, ``"cosine"`` or ``"constant"``.

    Raises:
        UsageError: a value is out of range.

    Source: Grill et al. (2020), Bootstrap your own latent (BYOL), section 3.2, for the cosine from 0.996 to 1.

    >>> momentum = Momentum.parse("0.9:1:cosine", steps=10)
    >>> [round(momentum.value(step), 3) for step in (0, 5, 10, 99)]
    [0.9, 0.95, 1.0, 1.0]
    """

    start: float
    end: float
    steps: int
    shape: str

    def __post_init__(self) -> None:
        good = 0 <= self.start < 1 and 0 <= self.end <= 1
        check(good, f"momentum: expected numbers from 0 to 1, and below 1 at the start, got {self.start}:{self.end}.")

    @classmethod
    def parse(cls, text: float | str, steps: int) -> Momentum:
        """Return what a number, ``"start:end"`` or ``"start:end:shape"`` says."""
        start, end, shape = parse_course("momentum", text)
        return cls(start, end, steps, shape)

    def value(self, step: int) -> float:
        """Return the momentum of a step."""
        return self.start + (self.end - self.start) * SHAPES[self.shape](min(step / self.steps, 1.0))


class Predictor(nn.Module):
    """What only the network in training has: a head on its projections, which predicts those of the other one.

    Args:
        dimensions: of the projections of each tower; each has a head of its own, and a shared tower one for all views.

    Shape: projections ``(b, P)`` per view to predictions of the same shape.

    Source: Grill et al. (2020), Bootstrap your own latent (BYOL), section 3.1.
    """

    def __init__(self, dimensions: Sequence[int]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Projector(size, PREDICTOR_HIDDEN, size) for size in dimensions)

    def forward(self, projections: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the predictions of each view."""
        if len(self.heads) == 1:
            # One pass over all views, as in the towers: batch norm sees them together.
            return self.heads[0](torch.cat(list(projections))).chunk(len(projections))  # type: ignore[no-any-return]
        return tuple(head(projection) for head, projection in zip(self.heads, projections, strict=True))


class MomentumTarget(nn.Module):
    """A copy of a model whose weights are a moving average of the model's: w' becomes m w' + (1 - m) w.

    Its running statistics are its own: it normalises by the batch, as the model in training does.

    Source: He et al. (2020), Momentum contrast (MoCo), eq. 2.
    """

    def __init__(self, model: Model, momentum: Momentum) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def forward(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the projections of views, ``(b, P)`` each, without a gradient."""
        return self.model.project(self.model.encode(views))

    @torch.no_grad()
    def follow(self, model: Model, step: int) -> None:
        """Move the weights towards those of the model, by what the momentum of the step lets through."""
        share = 1 - self.momentum.value(step)
        for own, other in zip(self.model.parameters(), model.parameters(), strict=True):
            own.lerp_(other, share)
