"""Loss against learned prototypes (SwAV)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.data import Batch
from contraport.errors import UsageError
from contraport.objectives import Cross, Objective, Target, assignments
from contraport.training.step.objective_loss import ObjectiveLoss
from contraport.training.step.step_loss import EmbeddedBatch


class PrototypeLoss(ObjectiveLoss):
    """Loss of each view against learned prototypes; the target is the prototype assignment of another view.

    Kernel, plan and divergence are those of the objective. Keys are assigned by a balanced plan, so that no prototype
    receives all items; see `contraport.objectives.assignments`.

    Args:
        objective: a single `Objective`.
        prototypes: number of prototypes.
        dimensions: dimension of an embedding.
        views: number of views.

    Raises:
        UsageError: another kind of objective.

    Source: Caron et al. (2020), Unsupervised learning of visual features by contrasting cluster assignments (SwAV),
    eq. 2-5; assignments are taken from the views that have keys (section 3.2).
    """

    def __init__(self, objective: nn.Module, prototypes: int, dimensions: int, *, views: int = 2) -> None:
        if not isinstance(objective, Objective):
            message = f"prototypes: requires a single Objective, got {objective!r}."
            raise UsageError(message, kind="no_single_objective")
        layout = Cross(symmetric=False, shared_columns=True)
        kernel, constraint, divergence = objective.kernel, objective.constraint, objective.divergence
        against_prototypes = Objective(layout, kernel, constraint, objective.target, divergence, objective.penalties)
        super().__init__(against_prototypes, views=views)
        self.prototypes = nn.Parameter(F.normalize(torch.randn(prototypes, dimensions)))

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        batch, queries = embedded.batch, embedded.queries
        targets = [assignments(key, self.prototypes) for key in embedded.key_projections]
        losses = [
            self.call_objective(batch, queries[v], self.prototypes, pair=(v, w), target=targets[w])
            for v, w in embedded.view_pairs()
        ]
        return torch.stack(losses).mean()

    def example_inputs(
        self, z: Tensor, batch: Batch, target: Target | None
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return embeddings and prototypes of an example call, with uniform assignments."""
        _, kwargs = super().example_inputs(z, batch, target)
        prototypes = self.prototypes.detach()
        return (z, prototypes), kwargs | {"target": torch.ones(len(z), len(prototypes))}

    def missing_views_blocker(self) -> str | None:
        """Return the reason why items with missing views are not supported: targets come from the other views."""
        return "prototypes are assigned by the other views of an item"

    def batch_size_warning(self, items: int) -> str | None:
        """Return a warning if a batch has fewer items than prototypes; else None."""
        if items >= len(self.prototypes):
            return None
        return (
            f"small batches: {items} items for {len(self.prototypes)} prototypes, each of which is assigned an equal "
            "part. Increase --batch_size or decrease --prototypes"
        )

    @torch.no_grad()
    def after_step(self) -> None:
        """Normalize the prototypes to unit length after an optimizer step."""
        self.prototypes.copy_(F.normalize(self.prototypes))
