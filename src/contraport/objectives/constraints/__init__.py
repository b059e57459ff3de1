"""Constraints of objectives: sets of allowed transport plans."""

from contraport.objectives.constraints.constraint import (
    Constraint,
    Exact,
    Free,
    LogMarginals,
    PlanRequest,
    Simplex,
)
from contraport.objectives.constraints.dense_tsallis import DenseTsallisPlan, solve_dense_tsallis
from contraport.objectives.constraints.sinkhorn import Balanced, Columns, Rows, Unbalanced
from contraport.objectives.constraints.tsallis import Tsallis, TsallisPlan
from contraport.objectives.constraints.whole_data_balanced import DataBalanced
from contraport.objectives.plan import DensePlan
from contraport.options import keep_deprecated_module_names

__all__ = [
    "Balanced", "Columns", "Constraint", "DataBalanced", "DensePlan", "DenseTsallisPlan", "Exact", "Free",
    "LogMarginals", "PlanRequest", "Rows", "Simplex", "Tsallis", "TsallisPlan", "Unbalanced", "solve_dense_tsallis",
]  # fmt: skip

__getattr__ = keep_deprecated_module_names(__name__, ExactPlan="DensePlan")
