"""Paired features of data whose views are vectors, without an encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from contraport.auditing.pairs.paired_features import PairedFeatures
from contraport.data import Dataset

MAX_VECTOR_WIDTH = 1_024
"""Widest vectors that are also scored as they are, beside an encoder's features: the time grows with the cube."""


def has_vector_views(dataset: Dataset, *, widest: int | None = None) -> bool:
    """Return whether all views are vectors, of at most `widest` numbers.

    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((torch.zeros(60, 3), torch.zeros(60, 8)))
    >>> has_vector_views(pairs), has_vector_views(pairs, widest=5)
    (True, False)
    """
    return all(len(shape) == 1 and (widest is None or shape[0] <= widest) for shape in dataset.shapes)


def load_vector_pairs(dataset: Dataset, *, pool: Tensor | None = None) -> PairedFeatures:
    """Return the vectors of all items as paired features; vectors of equal width count as one embedding space.

    Args:
        dataset: pairs of vectors.
        pool: the items that may be neighbors; default: all.
    """
    first, second = dataset.store.fetch(torch.arange(len(dataset)))
    return PairedFeatures((first, second), (first, second) if first.shape == second.shape else None, pool)
