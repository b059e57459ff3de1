"""Metrics of a frozen encoder: a registry with one entry per metric.

The registry is readable without torch: metrics import what computes them on first use.
"""

from contraport.metrics import builtin_metrics as _catalog  # noqa: F401  (registers the built-in metrics
from contraport.metrics.registry import (
    METRICS,
    Metric,
    Requirement,
    family_titles,
    metric,
    metric_by_key,
    metrics_in_order,
    metrics_of_rows,
    select_metrics,
)

__all__ = [
    "METRICS",
    "Metric",
    "Requirement",
    "family_titles",
    "metric",
    "metric_by_key",
    "metrics_in_order",
    "metrics_of_rows",
    "select_metrics",
]
