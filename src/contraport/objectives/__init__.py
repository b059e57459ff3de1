"""Contrastive objectives, combined of layout, kernel, constraint, target and divergence."""

from contraport.objectives import constraints, divergences, layout_wrappers, layouts, targets
from contraport.objectives.constraints import *
from contraport.objectives.divergences import *
from contraport.objectives.large_assignment import Assignment, approximate_assignment
from contraport.objectives.layout_wrappers import *
from contraport.objectives.layouts import *
from contraport.objectives.loss import Loss
from contraport.objectives.loss_schedules import Loosen, TemperatureSchedule, Tighten
from contraport.objectives.objective import Objective, SumLoss, matryoshka
from contraport.objectives.plan import Plan, PlanWithTarget
from contraport.objectives.targets import *
from contraport.objectives.transport_assignments_and_weights import (
    Transport,
    WeightsFromPlan,
    sinkhorn_divergence,
    soft_assignments,
    transport,
)
from contraport.options import keep_deprecated_module_names

__all__ = [
    "Assignment", "Loosen", "Loss", "Objective", "Plan", "PlanWithTarget", "SumLoss", "TemperatureSchedule", "Tighten",
    "Transport", "WeightsFromPlan", "approximate_assignment", "matryoshka", "sinkhorn_divergence", "soft_assignments",
    "transport",
]  # fmt: skip
__all__ += constraints.__all__
__all__ += divergences.__all__
__all__ += layout_wrappers.__all__
__all__ += layouts.__all__
__all__ += targets.__all__

__getattr__ = keep_deprecated_module_names(
    __name__,
    assignments="soft_assignments",
    BlockResult="PlanWithTarget",
    Coordinates="CoordinatePairs",
    DenseTarget="DenseTargetPlan",
    ExactPlan="DensePlan",
    Marginals="LogMarginals",
    PhaseShift="RotatedFirstView",
    PlanWeights="WeightsFromPlan",
    PiecewiseConstantTarget="PiecewiseConstantTargetPlan",
    SignedPairwise="PairwiseSum",
    SparseTarget="SparseTargetPlan",
)
