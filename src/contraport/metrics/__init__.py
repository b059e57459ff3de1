"""Metrics of a frozen encoder: a registry with one entry per metric.

The registry is readable without torch: metrics import what computes them on first use.
"""

from typing import Any

from contraport.metrics import builtin_metrics as _builtin_metrics  # noqa: F401  (registers the built-in metrics)
from contraport.metrics.registry import (
    METRICS,
    Metric,
    Requirement,
    collect_metrics_from_rows,
    find_metric,
    register_metric,
    select_metrics,
    select_metrics_keeping_order,
    titles_by_metric_name,
)
from contraport.options import warn_renamed

__all__ = [
    "METRICS",
    "Metric",
    "Requirement",
    "collect_metrics_from_rows",
    "find_metric",
    "register_metric",
    "select_metrics",
    "select_metrics_keeping_order",
    "titles_by_metric_name",
]


def __getattr__(name: str) -> Any:
    renamed = {"metric": register_metric, "metric_by_key": find_metric}
    if name in renamed:
        warn_renamed(f"contraport.metrics.{name}", f"contraport.metrics.{renamed[name].__name__}", stacklevel=3)
        return renamed[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
