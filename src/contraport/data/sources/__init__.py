"""Where data come from: `load`, the table of named data, and other libraries' datasets."""

from contraport.data.sources.named import Source, list_sources
from contraport.data.sources.opening import load
from contraport.data.sources.torch_datasets import from_torch

__all__ = ["Source", "from_torch", "list_sources", "load"]
