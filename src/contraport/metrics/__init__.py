"""Metrics of a frozen encoder: a registry with one entry per metric.

The registry is readable without torch: metrics import what computes them on first use.
"""

from contraport.metrics import builtin_metrics as _catalog  # noqa: F401  (registers the built-in metrics
from contraport.metrics.registry import (
    METRICS,
    Metric,
    Requirement,
    collect_metrics_from_rows,
    metric,
    metric_by_key,
    select_metrics,
    select_metrics_keeping_order,
    titles_by_metric_name,
)

__all__ = [
    "METRICS",
    "Metric",
    "Requirement",
    "collect_metrics_from_rows",
    "metric",
    "metric_by_key",
    "select_metrics",
    "select_metrics_keeping_order",
    "titles_by_metric_name",
]
