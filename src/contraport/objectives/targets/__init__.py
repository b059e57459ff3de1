"""Targets, which define the desired plan of a batch, such as its positive pairs.

A target (`Pairs`, `Labels`, ...) is a rule; for a block it gives a target plan of total mass 1, in a sparse,
structured, kernel or dense form, which never enters a pass over the pairs.
"""

from contraport.objectives.targets.attribute_targets import Domains, DuplicateGroups, Labels
from contraport.objectives.targets.explicit_targets import Matrix, PairList, SimilarityMatrix
from contraport.objectives.targets.feature_targets import Neighbors, SoftNeighbors
from contraport.objectives.targets.target import (
    DenseTargetPlan,
    Pairs,
    PiecewiseConstantTargetPlan,
    SparseTargetPlan,
    Target,
    TargetPlan,
)
from contraport.options import keep_deprecated_module_names

__all__ = [
    "DenseTargetPlan", "Domains", "DuplicateGroups", "Labels", "Matrix", "Neighbors", "PairList", "Pairs",
    "PiecewiseConstantTargetPlan", "SimilarityMatrix", "SoftNeighbors", "SparseTargetPlan", "Target", "TargetPlan",
]  # fmt: skip

__getattr__ = keep_deprecated_module_names(
    __name__,
    DenseTarget="DenseTargetPlan",
    PiecewiseConstantTarget="PiecewiseConstantTargetPlan",
    SparseTarget="SparseTargetPlan",
)
