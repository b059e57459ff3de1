"""Where data come from: `load`, what reads the named data, and other libraries' datasets."""

from contraport.data.sources.opening import load
from contraport.data.sources.torch_datasets import from_torch

__all__ = ["from_torch", "load"]
