"""Constraints of objectives: sets of allowed transport plans."""

from contraport.objectives.constraints.constraint import (
    Constraint,
    Exact,
    ExactPlan,
    Free,
    LogMarginals,
    PlanRequest,
    Simplex,
)
from contraport.objectives.constraints.data_balanced import DataBalanced
from contraport.objectives.constraints.dense_tsallis import DenseTsallisPlan, solve_dense_tsallis
from contraport.objectives.constraints.sinkhorn import Balanced, Columns, Rows, Unbalanced
from contraport.objectives.constraints.tsallis import Tsallis, TsallisPlan

__all__ = [
    "Balanced", "Columns", "Constraint", "DataBalanced", "DenseTsallisPlan", "Exact", "ExactPlan", "Free",
    "LogMarginals", "PlanRequest", "Rows", "Simplex", "Tsallis", "TsallisPlan", "Unbalanced", "solve_dense_tsallis",
]  # fmt: skip
