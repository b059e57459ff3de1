"""Sources of data, by name, path or URL, or from other libraries."""

from contraport.data.sources.external_datasets import from_stream, from_torch
from contraport.data.sources.load import load, load_without_random_split

__all__ = ["from_stream", "from_torch", "load", "load_without_random_split"]
