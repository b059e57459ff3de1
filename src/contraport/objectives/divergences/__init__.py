"""Divergences of the solved plan from the target plan, and penalties on the plan."""

from contraport.objectives.divergences.attraction_repulsion import (
    KernelAttraction,
    LogKernelAttraction,
    LogSumKernel,
    MeanKernel,
    MeanSquaredCost,
    VarianceHinge,
)
from contraport.objectives.divergences.costs import ContrastiveEnergy, TargetCost
from contraport.objectives.divergences.debiased_negatives import DebiasedContrastive
from contraport.objectives.divergences.distances import Hellinger, JensenShannon, TotalVariation
from contraport.objectives.divergences.divergence import Divergence
from contraport.objectives.divergences.logistic import Logistic, NoiseContrastiveEstimation
from contraport.objectives.divergences.moving_average import MovingAverageLogSum
from contraport.objectives.divergences.pairwise import PAIRWISE_PRESETS, Pairwise, SignedPairwise
from contraport.objectives.divergences.penalties import LogMeanKernel, MarginalPenalty, PlanUniformity
from contraport.objectives.divergences.plan_divergences import KL, ReverseKL, Rince, SquaredL2
from contraport.objectives.divergences.quadratic import ClosedFormQuadratic, FenchelYoung

__all__ = [
    "KL",
    "PAIRWISE_PRESETS",
    "ClosedFormQuadratic",
    "ContrastiveEnergy",
    "DebiasedContrastive",
    "Divergence",
    "FenchelYoung",
    "Hellinger",
    "JensenShannon",
    "KernelAttraction",
    "LogKernelAttraction",
    "LogMeanKernel",
    "LogSumKernel",
    "Logistic",
    "MarginalPenalty",
    "MeanKernel",
    "MeanSquaredCost",
    "MovingAverageLogSum",
    "NoiseContrastiveEstimation",
    "Pairwise",
    "PlanUniformity",
    "ReverseKL",
    "Rince",
    "SignedPairwise",
    "SquaredL2",
    "TargetCost",
    "TotalVariation",
    "VarianceHinge",
]
