"""HTML report that compares runs, and the page template that all HTML pages share.

Every page is one file that opens without a network, in light and in dark mode. Interactive figures are drawn by plotly
in the browser; figures in Python are `contraport.plots`.
"""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.reporting.page import report

__all__ = ["report"]

make_package_lazy(__name__, report="page")
