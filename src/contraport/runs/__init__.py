"""A training as it is asked for, and as it is kept: its settings, and the folder that holds it."""

from typing import TYPE_CHECKING

from contraport.importing import lazy_package

if TYPE_CHECKING:
    from contraport.runs.folder import default_path
    from contraport.runs.reading import MetricsRow, read
    from contraport.runs.run import Run

__all__ = ["MetricsRow", "Run", "default_path", "read"]

lazy_package(__name__, default_path="folder", MetricsRow="reading", read="reading", Run="run")
