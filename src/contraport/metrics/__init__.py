"""Metrics of a frozen encoder: a registry with one entry per metric.

The registry is readable without torch: metrics import what computes them on first use.
"""

from contraport.metrics import builtin_metrics as _builtin_metrics  # noqa: F401  (registers the built-in metrics)
from contraport.metrics.registry import (
    METRICS,
    Metric,
    Requirement,
    collect_metrics_for_display,
    combined_titles_by_name,
    find_metric,
    register_metric,
    select_metrics,
    select_metrics_keeping_order,
)
from contraport.options import keep_deprecated_module_names

__all__ = [
    "METRICS",
    "Metric",
    "Requirement",
    "collect_metrics_for_display",
    "combined_titles_by_name",
    "find_metric",
    "register_metric",
    "select_metrics",
    "select_metrics_keeping_order",
]

__getattr__ = keep_deprecated_module_names(
    __name__, metric="register_metric", metric_by_key="find_metric", shared_titles_by_name="combined_titles_by_name"
)
