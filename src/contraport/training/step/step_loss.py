"""Base class of the losses of a training step, and the loss of predictive learning, which has no objective."""

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
    """Batch together with its random views, their encoder features and their projections.

    Attributes:
        batch: raw items of the batch.
        input_views: random views of the items, one float tensor per view.
        features: encoder features of the views, ``(b, F)`` each.
        queries: projections (or predictions) of all views, ``(b, P)`` each, with gradients.
        key_projections: projections that queries are compared with, ``(b, P)`` for the first views: all, or the large
            ones of multi-crop.
        present: mask of the views that each item has, ``(b, views)``; None if all items have all views.
        weights_from_plan: sample weights derived from the plan of the batch; None if the option is not used.
    """

    batch: Batch
    input_views: tuple[Tensor, ...]
    features: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]
    key_projections: tuple[Tensor, ...]
    present: Tensor | None = None
    weights_from_plan: PlanWeights | None = None

    def objective_kwargs(self, *views: int) -> dict[str, Any]:
        """Return the keyword arguments `present` and `weights` for the objective, as far as they are needed.

        Args:
            views: numbers of the views that the objective compares; default: all.
        """
        kwargs: dict[str, Any] = {}
        if self.present is not None:
            kwargs["present"] = self.present[:, list(views)] if views else self.present
        if self.weights_from_plan is not None:
            kwargs["weights"] = replace(self.weights_from_plan, item_weights=self.batch.weights)
        return kwargs

    def view_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield all ordered pairs (query view, key view)."""
        return ((v, w) for v, w in permutations(range(len(self.queries)), 2) if w < len(self.key_projections))


class StepLoss(nn.Module, ABC):
    """Base class of losses of a training step, computed from an embedded batch.

    Attributes:
        objective: objective that is called on the embeddings; None for predictive learning.
    """

    def __init__(self, objective: nn.Module | None) -> None:
        super().__init__()
        self.objective = objective

    @abstractmethod
    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch, a tensor without dimensions."""

    def batch_size_warning(self, items: int) -> str | None:
        """Return a warning with a remedy if batches of this size are too small for the loss; else None."""
        return None

    def missing_views_blocker(self) -> str | None:
        """Return the reason why items with missing views are not supported, or None if they are."""
        return "predictive learning requires all views of each item"

    def after_step(self) -> None:
        """Update the state of the loss after an optimizer step."""


RECONSTRUCTION_ERRORS = {"l1": F.l1_loss, "l2": F.mse_loss}


class ReconstructionLoss(StepLoss):
    """Predictive learning baseline: reconstructs each normalized view from the features of each other view.

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
        targets = [normalize(view) for normalize, view in zip(self._normalizers, embedded.input_views, strict=True)]
        features = embedded.features
        losses = [self._error(self.decoders[f"{v}-{w}"](features[v]), targets[w]) for v, w in embedded.view_pairs()]
        return torch.stack(losses).mean()
