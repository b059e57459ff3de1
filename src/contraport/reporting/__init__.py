"""Numbers and plans as pictures: one HTML page about runs."""

from contraport.reporting.page import report

__all__ = ["report"]
