"""Where items come from, their batches, and the random views that are made of them.

```
dataset        what all data are: items of one or more views; `loading` makes batches of them
stores         where the views lie, and what is made of them as they come
arrays         items held in memory
decoding       items that are encoded images; `splits` and `items` make a dataset of one split
formats/       the files and folders that data lie in
sources/       `load`, the one door: a name, a path or another library's dataset
views/         the views of a batch, made at random
```
"""

from contraport.data.arrays import from_arrays
from contraport.data.data_loader import BatchOrder, Share, loader, local_share
from contraport.data.dataset import Batch, Dataset
from contraport.data.sources import from_stream, from_torch, load, load_unsplit
from contraport.data.views import Views
from contraport.data.views.custom_transforms import BatchTransform

__all__ = [
    "Batch",
    "BatchOrder",
    "BatchTransform",
    "Dataset",
    "Share",
    "Views",
    "from_arrays",
    "from_stream",
    "from_torch",
    "load",
    "load_unsplit",
    "loader",
    "local_share",
]
