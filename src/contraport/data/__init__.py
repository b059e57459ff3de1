"""Datasets, their sources and formats, batch loaders, and random views.

```
dataset            Dataset and Batch; `data_loader` makes batches
stores             hold the views in memory, or read or derive them at each fetch
array_datasets     datasets from arrays in memory
coupling_datasets  datasets of pairs between two different sets
item_metadata      builds the dataset of one split from all items of a source; `splits` selects the items
formats/           readers of files and folders
sources/           `load`, the entry point: a name, a path, or another library's dataset
views/             random views of a batch
```
"""

from contraport.data.array_datasets import from_arrays
from contraport.data.coupling_datasets import from_coupling
from contraport.data.data_loader import BatchOrder, LocalBatchOffset, build_loader, local_batch_offset
from contraport.data.dataset import Batch, Dataset
from contraport.data.sources import from_stream, from_torch, load, load_split_or_all_items
from contraport.data.views import Views
from contraport.data.views.custom_transforms import BatchTransform
from contraport.options import keep_deprecated_module_names

__all__ = [
    "Batch",
    "BatchOrder",
    "BatchTransform",
    "Dataset",
    "LocalBatchOffset",
    "Views",
    "build_loader",
    "from_arrays",
    "from_coupling",
    "from_stream",
    "from_torch",
    "load",
    "load_split_or_all_items",
    "local_batch_offset",
]

__getattr__ = keep_deprecated_module_names(
    __name__,
    Share="LocalBatchOffset",
    BatchShare="LocalBatchOffset",
    BatchOffset="LocalBatchOffset",
    loader="build_loader",
    local_share="local_batch_offset",
    own_share="local_batch_offset",
    OnBatches="BatchTransform",
    load_undivided="load_split_or_all_items",
    load_unsplit="load_split_or_all_items",
    load_without_random_split="load_split_or_all_items",
)
