"""Sources of data, their batches, and the batched transforms that make views of them."""

from contraport.data.arrays import from_arrays
from contraport.data.augment import STRENGTHS, Augment
from contraport.data.dataset import Batch, Dataset
from contraport.data.loading import EpochSampler, loader
from contraport.data.sources import Source, list_sources, load

__all__ = [
    "STRENGTHS",
    "Augment",
    "Batch",
    "Dataset",
    "EpochSampler",
    "Source",
    "from_arrays",
    "list_sources",
    "load",
    "loader",
]
