"""The items of data whose views are vectors, as two sides without an encoder."""

from __future__ import annotations

import torch
from torch import Tensor

from contraport.auditing.pairs.paired_features import PairedFeatures
from contraport.data import Dataset

MAX_VECTOR_WIDTH = 1_024
"""Numbers in a vector at most that are judged beside what an encoder says of it; the time goes with their cube."""


def has_vector_views(dataset: Dataset, *, widest: int | None = None) -> bool:
    """Return whether all views are vectors, of so many numbers at most.

    >>> from contraport.data import from_arrays
    >>> pairs = from_arrays((torch.zeros(60, 3), torch.zeros(60, 8)))
    >>> has_vector_views(pairs), has_vector_views(pairs, widest=5)
    (True, False)
    """
    return all(len(shape) == 1 and (widest is None or shape[0] <= widest) for shape in dataset.shapes)


def load_vector_pairs(dataset: Dataset, *, kept: Tensor | None = None) -> PairedFeatures:
    """Return both vectors of each item as they are; those of one width are taken to be in one space.

    Args:
        dataset: of two views, which are vectors.
        kept: the items among which neighbours are looked for; default: all.
    """
    first, second = dataset.store.fetch(torch.arange(len(dataset)))
    return PairedFeatures((first, second), (first, second) if first.shape == second.shape else None, kept)
