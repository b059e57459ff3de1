"""A training on the disk: the folder that holds it."""

from contraport.runs.folder import Row, Run, read

__all__ = ["Row", "Run", "read"]
