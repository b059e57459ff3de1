"""Paired features of a model that is being trained."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contraport.auditing.pairs import PairedFeatures
from contraport.data import Dataset, Views
from contraport.embedding import LoaderConfig, extract_features
from contraport.encoders import Model


def encode_pairs(
    model: Model, dataset: Dataset, views: Views, reader: LoaderConfig, *, pool: Tensor | None = None
) -> PairedFeatures:
    """Return the features and projections of all pairs; mode and device of the model stay as they are.

    Args:
        model: a model of two views.
        dataset: the pairs.
        views: the views of the pairs.
        reader: loads the pairs; its device is replaced by the model's.
        pool: the items that may be neighbors; default: all.
    """
    reader = reader._replace(device=next(model.parameters()).device)
    values = extract_features(_FeaturesAndProjections(model), dataset, views, reader, "pairs")
    widths = [getattr(model.tower(view), size) for size in ("num_features", "projection_width") for view in (0, 1)]
    first, second, *projections = values.split(widths, dim=1)
    comparable = widths[2] == widths[3]
    return PairedFeatures((first, second), (projections[0], projections[1]) if comparable else None, pool)


class _FeaturesAndProjections(nn.Module):
    """Concatenates the features of both views and the projections of both."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def forward(self, *views: Tensor) -> Tensor:
        features = self._model.encode(views)
        return torch.cat([*features, *self._model.project(features)], dim=1)
