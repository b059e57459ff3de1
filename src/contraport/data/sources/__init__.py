"""Sources of data, by name, path or URL, or from other libraries."""

from contraport.data.sources.load import load, load_split_or_all_items
from contraport.data.sources.torch_datasets_and_streams import from_stream, from_torch

__all__ = ["from_stream", "from_torch", "load", "load_split_or_all_items"]
