"""What a comparison is: the embeddings of a batch, of which it makes a loss."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from contraport.data import Batch
from contraport.objectives import PlanWeights


class EmbeddedBatch(NamedTuple):
    """What the networks made of a batch.

    Attributes:
        batch: the items.
        views: their random views, floats.
        features: the encoder's output, ``(b, F)`` per view.
        queries: what the objective sees, ``(b, P)`` per view, with a gradient.
        keys: what each query is compared with, ``(b, P)`` for each of the first views: all, or the large ones of
            multi-crop.
        present: which items have which views, ``(b, views)``; None where all have all.
        weighting: by what plan items count, times the batch's weights; None where by these alone.
    """

    batch: Batch
    views: tuple[Tensor, ...]
    features: tuple[Tensor, ...]
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    present: Tensor | None = None
    weighting: PlanWeights | None = None

    def facts(self, *views: int) -> dict[str, Any]:
        """Return what an objective of some views is told beside the batch, of all views by default.

        That is which items lack a view, and by what they count where the batch does not say it.
        """
        told: dict[str, Any] = {}
        if self.present is not None:
            told["present"] = self.present[:, list(views)] if views else self.present
        if self.weighting is not None:
            told["weights"] = replace(self.weighting, given=self.batch.weights)
        return told

    def turns(self) -> Iterator[tuple[int, int]]:
        """Yield each view with each other view that has keys."""
        return ((v, w) for v, w in permutations(range(len(self.queries)), 2) if w < len(self.keys))


class StepLoss(nn.Module, ABC):
    """Makes the loss of a step.

    Attributes:
        objective: what is called on embeddings, or None where nothing is.
    """

    def __init__(self, objective: nn.Module | None) -> None:
        super().__init__()
        self.objective = objective

    @abstractmethod
    def forward(self, embedded: EmbeddedBatch) -> Tensor:
        """Return the loss of a batch, a tensor without dimensions."""

    def doubt(self, items: int) -> str | None:
        """Return why batches of so many items are too small to learn from, and what to do; None where they are not."""
        return None

    def missing_views_blocker(self) -> str | None:
        """Return why items may not lack a view, or None where they may."""
        return "this comparison needs all views of an item"

    def after_step(self) -> None:
        """Take in what the step brought."""


def mean_of(losses: Sequence[Tensor]) -> Tensor:
    """Return the mean of the losses of the turns."""
    return torch.stack(list(losses)).mean()
