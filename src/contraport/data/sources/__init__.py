"""Sources of data: the function `load`, readers of named data, and wrappers of other libraries' datasets."""

from contraport.data.sources.load import load, load_unsplit
from contraport.data.sources.torch_datasets import from_stream, from_torch

__all__ = ["from_stream", "from_torch", "load", "load_unsplit"]
