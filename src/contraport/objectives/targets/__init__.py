"""Which plan do we want?

A target (`Pairs`, `Labels`, ...) is a rule; on the block of a batch it becomes a target plan, which is sparse,
structured or a matrix, has total mass 1 and never enters a pass over the pairs.
"""

from contraport.objectives.targets.explicit import Matrix, PairList, SimilarityMatrix
from contraport.objectives.targets.feature_targets import Neighbors, SoftNeighbors
from contraport.objectives.targets.labels import Domains, DuplicateGroups, Labels, Pairs
from contraport.objectives.targets.target import DenseTarget, SparseTarget, StructuredTarget, Target, TargetPlan

__all__ = [
    "DenseTarget",
    "Domains",
    "DuplicateGroups",
    "Labels",
    "Matrix",
    "Neighbors",
    "PairList",
    "Pairs",
    "SimilarityMatrix",
    "SoftNeighbors",
    "SparseTarget",
    "StructuredTarget",
    "Target",
    "TargetPlan",
]
