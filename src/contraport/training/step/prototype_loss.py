"""The comparison with prototypes, to which the other views of an item say that it belongs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.data import Batch
from contraport.errors import UsageError
from contraport.objectives import Cross, Objective, Target, assignments
from contraport.training.step.objective_loss import ObjectiveLoss
from contraport.training.step.step_loss import EmbeddedBatch, mean_of


class PrototypeLoss(ObjectiveLoss):
    """The objective of each view's queries against prototypes; its target is to which another view's keys belong.

    The objective keeps its kernel, plan and divergence, and compares items with prototypes. To which prototypes keys
    belong is a balanced plan, so that none takes all; see `contraport.objectives.assignments`.

    Args:
        objective: a single `Objective`.
        prototypes: how many.
        dimensions: of an embedding.
        views: how many views there are.

    Raises:
        UsageError: another kind of objective.

    Source: Caron et al. (2020), Unsupervised learning of visual features by contrasting cluster assignments (SwAV),
    eq. 2-5; the views from which assignments are taken are those that have keys (section 3.2).
    """

    def __init__(self, objective: nn.Module, prototypes: int, dimensions: int, *, views: int = 2) -> None:
        if not isinstance(objective, Objective):
            raise UsageError(f"prototypes: expected a single Objective to compare them by, got {objective!r}.")
        layout = Cross(symmetric=False, shared_columns=True)
        kernel, constraint, divergence = objective.kernel, objective.constraint, objective.divergence
        compared = Objective(layout, kernel, constraint, objective.target, divergence, objective.penalties)
        super().__init__(compared, views=views)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(prototypes, dimensions)))

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch."""
        targets = [assignments(key, self.prototypes) for key in embedded.keys]
        return mean_of(
            [
                self.compare(embedded.batch, embedded.queries[v], self.prototypes, turn=(v, w), target=targets[w])
                for v, w in embedded.turns()
            ]
        )

    def example(self, z: Tensor, batch: Batch, target: Target | None) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return a view and the prototypes, to all of which each item belongs alike."""
        _, known = super().example(z, batch, target)
        prototypes = self.prototypes.detach()
        return (z, prototypes), known | {"target": torch.ones(len(z), len(prototypes))}

    def missing_views_blocker(self) -> str | None:
        """Return that what an item is assigned to comes from its other view."""
        return "to which prototypes an item belongs is told by its other views"

    def doubt(self, items: int) -> str | None:
        """Return that prototypes are more than the items that are assigned to them in equal parts."""
        if items >= len(self.prototypes):
            return None
        return (
            f"batches of {items} are small for {len(self.prototypes)} prototypes, each of which gets an equal part; "
            "a larger --batch_size or fewer --prototypes help"
        )

    @torch.no_grad()
    def after_step(self) -> None:
        """Put the prototypes back on the sphere."""
        self.prototypes.copy_(F.normalize(self.prototypes))
