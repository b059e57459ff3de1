"""Numbers and plans as pictures: one HTML page about runs."""

from typing import TYPE_CHECKING

from contraport._utils.lazy import make_package_lazy

if TYPE_CHECKING:
    from contraport.reporting.page import report

__all__ = ["report"]

make_package_lazy(__name__, report="page")
