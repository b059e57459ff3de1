"""A training as it is asked for, and as it is kept: its settings, and the folder that holds it."""

from contraport.runs.folder import default_path
from contraport.runs.reading import MetricsRow, read
from contraport.runs.run import Run

__all__ = ["MetricsRow", "Run", "default_path", "read"]
