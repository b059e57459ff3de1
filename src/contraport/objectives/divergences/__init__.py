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
from contraport.objectives.divergences.divergence import Divergence
from contraport.objectives.divergences.pairwise_divergences import (
    PAIRWISE_PRESETS,
    ClosedFormQuadratic,
    DebiasedContrastive,
    Pairwise,
    SignedPairwise,
)
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

__all__ = [
    "KL", "PAIRWISE_PRESETS", "ClosedFormQuadratic", "ContrastiveEnergy", "DebiasedContrastive", "Divergence",
    "FenchelYoung", "Hellinger", "JensenShannon", "KernelAttraction", "LogKernelAttraction", "LogMeanKernel",
    "LogSumKernel", "Logistic", "MarginalPenalty", "MeanKernel", "MeanSquaredCost", "MovingAverageLogSum",
    "NoiseContrastiveEstimation", "PairRanking", "Pairwise", "PlanEntropy", "PlanUniformity", "ReverseKL", "Rince",
    "SignedPairwise", "SquaredL2", "TargetCost", "TotalVariation", "VarianceHinge",
]  # fmt: skip
