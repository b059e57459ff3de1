"""Builds paired features of a two-view dataset: by a model, or directly from views that are vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contraport.auditing.pairs.paired_features import PairedFeatures
from contraport.data import Dataset, Views
from contraport.embedding import LoaderConfig, extract_features
from contraport.encoders import Model

MAX_VECTOR_WIDTH = 1_024
"""Widest vectors that are also scored as they are, beside an encoder's features: the time grows with the cube."""


def has_vector_views(dataset: Dataset, *, widest: int | None = None) -> bool:
    """Return whether all views of a dataset are vectors, with at most `widest` entries.

    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((torch.zeros(60, 3), torch.zeros(60, 8)))
    >>> has_vector_views(pairs), has_vector_views(pairs, widest=5)
    (True, False)
    """
    return all(len(shape) == 1 and (widest is None or shape[0] <= widest) for shape in dataset.shapes)


def load_vector_pairs(dataset: Dataset, *, pool: Tensor | None = None) -> PairedFeatures:
    """Load vector views as paired features; views of equal width are treated as one embedding space.

    Args:
        dataset: pairs of vectors.
        pool: the items that may be neighbors; default: all.
    """
    first, second = dataset.store.fetch(torch.arange(len(dataset)))
    return PairedFeatures((first, second), (first, second) if first.shape == second.shape else None, pool)


def encode_pairs(
    model: Model, dataset: Dataset, views: Views, loader_config: LoaderConfig, *, pool: Tensor | None = None
) -> PairedFeatures:
    """Encode all pairs of a dataset by a model; return paired features whose embeddings are the projections.

    The mode and device of the model stay as they are.

    Args:
        model: a model of two views.
        dataset: the pairs.
        views: the views of the pairs.
        loader_config: loads the pairs; its device is replaced by the model's.
        pool: the items that may be neighbors; default: all.
    """
    loader_config = loader_config._replace(device=next(model.parameters()).device)
    values = extract_features(_FeaturesAndProjections(model), dataset, views, loader_config, "pairs")
    widths = [getattr(model.tower(view), size) for size in ("num_features", "projection_width") for view in (0, 1)]
    first, second, *projections = values.split(widths, dim=1)
    comparable = widths[2] == widths[3]
    return PairedFeatures((first, second), (projections[0], projections[1]) if comparable else None, pool)


class _FeaturesAndProjections(nn.Module):
    """Module that maps two views of each item to one row: the features and the projections of both views."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self._model = model

    def forward(self, *views: Tensor) -> Tensor:
        features = self._model.encode(views)
        return torch.cat([*features, *self._model.project(features)], dim=1)
