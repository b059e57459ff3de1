"""Losses of a training step: the base class, and predictive learning without an objective."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport.data import Batch
from contraport.encoders import Decoder, Model
from contraport.errors import unknown_name_error
from contraport.objectives import PlanWeights


class EmbeddedBatch(NamedTuple):
    """Batch with its views, features and projections.

    Attributes:
        batch: the items.
        views: their random views, floats.
        features: encoder features, ``(b, F)`` per view.
        queries: projections (or predictions) of all views, ``(b, P)`` each, with gradients.
        keys: projections that queries are compared with, ``(b, P)`` for the first views: all, or the large ones of
            multi-crop.
        present: which items have which views, ``(b, views)``; None if all items have all views.
        plan_weights: weights by the batch's plan, times those of the batch; None without.
    """

    batch: Batch
    views: tuple[Tensor, ...]
    features: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    present: Tensor | None = None
    plan_weights: PlanWeights | None = None

    def objective_kwargs(self, *views: int) -> dict[str, Any]:
        """Return the keywords `present` and `weights` of an objective of some views (default: all), if needed."""
        kwargs: dict[str, Any] = {}
        if self.present is not None:
            kwargs["present"] = self.present[:, list(views)] if views else self.present
        if self.plan_weights is not None:
            kwargs["weights"] = replace(self.plan_weights, item_weights=self.batch.weights)
        return kwargs

    def view_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield all ordered pairs (query view, key view)."""
        return ((v, w) for v, w in permutations(range(len(self.queries)), 2) if w < len(self.keys))


class StepLoss(nn.Module, ABC):
    """Computes the loss of a step.

    Attributes:
        objective: the objective that is called on embeddings; None for predictive learning.
    """

    def __init__(self, objective: nn.Module | None) -> None:
        super().__init__()
        self.objective = objective

    @abstractmethod
    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch, a tensor without dimensions."""

    def batch_size_warning(self, items: int) -> str | None:
        """Return a warning if batches of this size are too small, with a remedy; else None."""
        return None

    def missing_views_blocker(self) -> str | None:
        """Return why all items must have all views, or None if views may be missing."""
        return "predictive learning requires all views of each item"

    def after_step(self) -> None:
        """Update state after the optimizer step."""


RECONSTRUCTION_ERRORS = {"l1": F.l1_loss, "l2": F.mse_loss}


class ReconstructionLoss(StepLoss):
    """Predictive learning baseline: decodes each view, normalized, from the features of each other view.

    Args:
        model: the model whose features are decoded.
        shapes: shapes of the views.
        error: ``"l1"``, mean absolute error, or ``"l2"``, mean squared error.

    Raises:
        UsageError: unknown error.

    Source: the baseline of Tian, Krishnan and Isola (2020), Contrastive multiview coding, section 3.1.
    """

    def __init__(self, model: Model, shapes: Sequence[tuple[int, ...]], error: str) -> None:
        super().__init__(None)
        if error not in RECONSTRUCTION_ERRORS:
            raise unknown_name_error("predict", error, RECONSTRUCTION_ERRORS)
        self._error = RECONSTRUCTION_ERRORS[error]
        self._normalizers = tuple(model.tower(view).standardize for view in range(len(shapes)))
        self.decoders = nn.ModuleDict(
            {
                f"{v}-{w}": Decoder(model.tower(v).num_features, shapes[w])
                for v, w in permutations(range(len(shapes)), 2)
            }
        )

    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        targets = [normalize(view) for normalize, view in zip(self._normalizers, embedded.views, strict=True)]
        features = embedded.features
        losses = [self._error(self.decoders[f"{v}-{w}"](features[v]), targets[w]) for v, w in embedded.view_pairs()]
        return torch.stack(losses).mean()
