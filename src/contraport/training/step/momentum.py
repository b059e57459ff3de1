"""Two networks that learn from each other: the one in training predicts, the other follows it slowly."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contraport.encoders import Model, Projector
from contraport.schedules import ScalarSchedule

PREDICTOR_HIDDEN = 512


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
            together = self.heads[0](torch.cat(list(projections)))
            return together.split([len(projection) for projection in projections])  # type: ignore[no-any-return]
        return tuple(head(projection) for head, projection in zip(self.heads, projections, strict=True))


class MomentumEncoder(nn.Module):
    """A copy of a model whose weights are a moving average of the model's: w' becomes m w' + (1 - m) w.

    Its running statistics are its own: it normalises by the batch, as the model in training does.

    Args:
        model: what it follows.
        momentum: the course of m, which is how much of itself it keeps at each step.

    Source: He et al. (2020), Momentum contrast (MoCo), eq. 2.
    """

    def __init__(self, model: Model, momentum: ScalarSchedule) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def forward(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the projections of views, ``(b, P)`` each, without a gradient."""
        return self.project(self.model.encode(views))

    @torch.no_grad()
    def project(self, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the projections ``(b, P)`` of the features of views, without a gradient."""
        return self.model.project(features)

    @torch.no_grad()
    def follow(self, model: Model, step: int) -> None:
        """Move the weights towards those of the model, by what the momentum of the step lets through."""
        share = 1 - self.momentum.value(step)
        for own, other in zip(self.model.parameters(), model.parameters(), strict=True):
            own.lerp_(other, share)
