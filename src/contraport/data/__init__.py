"""Sources of data, their batches, and the batched transforms that make views of them."""

from contraport.data.arrays import from_arrays
from contraport.data.dataset import Batch, Dataset
from contraport.data.draws import Rows
from contraport.data.loading import BatchOrder, loader, own_rows
from contraport.data.sources import Source, list_sources, load
from contraport.data.torch_datasets import from_torch
from contraport.data.views import AUGMENTS, Views

__all__ = [
    "AUGMENTS",
    "Batch",
    "BatchOrder",
    "Dataset",
    "Rows",
    "Source",
    "Views",
    "from_arrays",
    "from_torch",
    "list_sources",
    "load",
    "loader",
    "own_rows",
]
