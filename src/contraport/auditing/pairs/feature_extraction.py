"""What a model that is being trained says of both members of all pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contraport.auditing.pairs import PairedFeatures
from contraport.data import Dataset, Views
from contraport.embedding import LoaderConfig, represent
from contraport.encoders import Model


def encode_pairs(
    model: Model, dataset: Dataset, views: Views, reader: LoaderConfig, *, kept: Tensor | None = None
) -> PairedFeatures:
    """Return the frozen features and projections of all pairs; the model stays as it is, and where it is.

    Args:
        model: of two views.
        dataset: the pairs.
        views: of the pairs.
        reader: how they are read; its device is the model's.
        kept: the items among which neighbours are looked for; default: all.
    """
    reader = reader._replace(device=next(model.parameters()).device)
    values = represent(_Outputs(model), dataset, views, reader, "pairs")
    widths = [getattr(model.tower(view), size) for size in ("num_features", "projection_width") for view in (0, 1)]
    first, second, *projections = values.split(widths, dim=1)
    comparable = widths[2] == widths[3]
    return PairedFeatures((first, second), (projections[0], projections[1]) if comparable else None, kept)


class _Outputs(nn.Module):
    """A model that gives the features of both views, and then the projections of both, whichever represent an item."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def forward(self, *views: Tensor) -> Tensor:
        """Return all four side by side."""
        features = self._model.encode(views)
        return torch.cat([*features, *self._model.project(features)], dim=1)
