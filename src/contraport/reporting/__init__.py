"""Numbers and plans as pictures: one HTML page about runs."""

from typing import TYPE_CHECKING

from contraport.lazy import lazy_package

if TYPE_CHECKING:
    from contraport.reporting.page import report

__all__ = ["report"]

lazy_package(__name__, report="page")
