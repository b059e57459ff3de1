"""Formats of files and folders, one module each.

All modules here are imported, so a new format is added by a file of its own with a reader under `data_format`.
"""

import pkgutil
from importlib import import_module

from contraport.data.formats.format import FORMATS, Format, data_format, find_format, list_file_suffixes

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["FORMATS", "Format", "data_format", "find_format", "list_file_suffixes"]
