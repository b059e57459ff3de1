"""Targets: rules that give the target plan of a block, such as its positive pairs.

A target (`Pairs`, `Labels`, ...) is a rule; for a block it gives a target plan of total mass 1, in a sparse,
structured, kernel or dense form, which never enters a pass over the pairs.
"""

from contraport.objectives.targets.attribute_targets import Domains, DuplicateGroups, Labels
from contraport.objectives.targets.explicit import Matrix, PairList, SimilarityMatrix
from contraport.objectives.targets.feature_targets import Neighbors, SoftNeighbors
from contraport.objectives.targets.target import (
    DenseTarget,
    Pairs,
    PiecewiseConstantTarget,
    SparseTarget,
    Target,
    TargetPlan,
)

__all__ = [
    "DenseTarget", "Domains", "DuplicateGroups", "Labels", "Matrix", "Neighbors", "PairList", "Pairs",
    "PiecewiseConstantTarget", "SimilarityMatrix", "SoftNeighbors", "SparseTarget", "Target", "TargetPlan",
]  # fmt: skip
