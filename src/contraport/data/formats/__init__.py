"""The files and folders that data lie in, a reader for each."""

from contraport.data.formats.array_files import load_npy, load_npz
from contraport.data.formats.folder import load_folder
from contraport.data.formats.huggingface import is_huggingface_folder, load_huggingface
from contraport.data.formats.shards import is_shards, load_shards
from contraport.data.formats.tables import load_table

__all__ = [
    "is_huggingface_folder",
    "is_shards",
    "load_folder",
    "load_huggingface",
    "load_npy",
    "load_npz",
    "load_shards",
    "load_table",
]
