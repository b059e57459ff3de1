"""Divergences of the solved plan from the target plan, and penalties on the plan."""

from contraport.objectives.divergences.attraction_repulsion import (
    ContrastiveEnergy,
    KernelAttraction,
    LogKernelAttraction,
    LogMeanKernel,
    LogSumKernel,
    MeanKernel,
    MeanSquaredCost,
    PairRanking,
    TargetCost,
    VarianceHinge,
)
from contraport.objectives.divergences.cost_difference_divergences import (
    PAIRWISE_PRESETS,
    ClosedFormQuadratic,
    DebiasedContrastive,
    Pairwise,
    PairwiseSum,
)
from contraport.objectives.divergences.divergence import Divergence
from contraport.objectives.divergences.plan_divergences import (
    KL,
    FenchelYoung,
    Hellinger,
    JensenShannon,
    MarginalPenalty,
    PlanEntropy,
    PlanUniformity,
    ReverseKL,
    Rince,
    SquaredL2,
    TotalVariation,
)
from contraport.objectives.divergences.stateful_divergences import (
    Logistic,
    MovingAverageLogSum,
    NoiseContrastiveEstimation,
)
from contraport.options import keep_deprecated_module_names

__all__ = [
    "KL", "PAIRWISE_PRESETS", "ClosedFormQuadratic", "ContrastiveEnergy", "DebiasedContrastive",
    "Divergence", "FenchelYoung", "Hellinger", "JensenShannon", "KernelAttraction", "LogKernelAttraction",
    "LogMeanKernel", "LogSumKernel", "Logistic", "MarginalPenalty", "MeanKernel", "MeanSquaredCost",
    "MovingAverageLogSum", "NoiseContrastiveEstimation", "PairRanking", "Pairwise", "PairwiseSum", "PlanEntropy",
    "PlanUniformity", "ReverseKL", "Rince", "SquaredL2", "TargetCost", "TotalVariation", "VarianceHinge",
]  # fmt: skip

__getattr__ = keep_deprecated_module_names(__name__, SignedPairwise="PairwiseSum")
