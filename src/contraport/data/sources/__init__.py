"""Sources of data: the function `load`, readers of named data, and wrappers of other libraries' datasets."""

from contraport.data.sources.external_datasets import from_stream, from_torch
from contraport.data.sources.load import load, load_without_random_split

__all__ = ["from_stream", "from_torch", "load", "load_without_random_split"]
