"""Where data come from: `load`, what reads the named data, and other libraries' datasets."""

from contraport.data.sources.iterables import from_stream
from contraport.data.sources.load import load, load_unsplit
from contraport.data.sources.torch_datasets import from_torch

__all__ = ["from_stream", "from_torch", "load", "load_unsplit"]
