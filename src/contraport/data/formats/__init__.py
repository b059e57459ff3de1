"""The files and folders that data lie in: a table of formats, each with its reader.

Every module here is imported, so that a format is added by a file of its own, which enters it in the table.
"""

import pkgutil
from importlib import import_module

from contraport.data.formats.format import FORMATS, Format, data_format, find_format, suffixes

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["FORMATS", "Format", "data_format", "find_format", "suffixes"]
