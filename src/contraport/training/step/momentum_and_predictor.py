"""Momentum encoder (MoCo) and prediction head (BYOL)."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contraport.encoders import Model, Projector
from contraport.schedules import RampSchedule


class Predictor(nn.Module):
    """Prediction head (BYOL) with a hidden layer of width 512.

    Args:
        tower_projection_sizes: projection size of each tower. A shared tower has one head for all views.

    Shape: projections ``(b, P)`` per view to predictions of the same shape.

    Source: Grill et al. (2020), Bootstrap your own latent (BYOL), section 3.1.
    """

    def __init__(self, tower_projection_sizes: Sequence[int]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Projector(size, 512, size) for size in tower_projection_sizes)

    def forward(self, projections: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if len(self.heads) == 1:
            # One pass over all views, as in the towers, so that batch norm normalizes them together.
            predictions = self.heads[0](torch.cat(list(projections)))
            return predictions.split([len(projection) for projection in projections])  # type: ignore[no-any-return]
        return tuple(head(projection) for head, projection in zip(self.heads, projections, strict=True))


class MomentumEncoder(nn.Module):
    """Copy of a model with exponential moving averages of its weights.

    The weights w' become m w' + (1 - m) w after each step. The copy normalizes by batch statistics, as the model
    in training mode, and has its own running statistics.

    Args:
        momentum: schedule of m.

    Source: He et al. (2020), Momentum contrast (MoCo), eq. 2.
    """

    def __init__(self, model: Model, momentum: RampSchedule) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def forward(self, views: Sequence[Tensor], *, are_features: bool = False) -> tuple[Tensor, ...]:
        """Return each view's projection, ``(b, P)``, without tracking gradients."""
        return self.model.project(views if are_features else self.model.encode(views))

    @torch.no_grad()
    def update(self, model: Model, step: int) -> None:
        """Update the moving averages of the weights after an optimizer step."""
        share = 1 - self.momentum.value(step)
        for own, other in zip(self.model.parameters(), model.parameters(), strict=True):
            own.lerp_(other, share)
