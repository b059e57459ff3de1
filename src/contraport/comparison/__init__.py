"""Comparison of objectives on a grid of data, settings and seeds."""

from typing import TYPE_CHECKING

from contraport._utils.lazy_imports import make_package_lazy

if TYPE_CHECKING:
    from contraport.comparison.compare_command import compare
    from contraport.comparison.comparison_result import Comparison

__all__ = ["Comparison", "compare"]

make_package_lazy(__name__, compare="compare_command", Comparison="comparison_result")
