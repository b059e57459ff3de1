"""How far is the plan that came out from the plan that is wanted?"""

from contraport.objectives.divergences.costs import Cost, Energy
from contraport.objectives.divergences.debiased import Debiased
from contraport.objectives.divergences.decoupled import Affinity, Agreement, LogSum, LowVariance, MeanKernel, MeanSquare
from contraport.objectives.divergences.distances import Hellinger, JensenShannon, TotalVariation
from contraport.objectives.divergences.divergence import Divergence
from contraport.objectives.divergences.logistic import Logistic, NoiseContrast
from contraport.objectives.divergences.moving import MovingLogSum
from contraport.objectives.divergences.of_plans import KL, ReverseKL, Rince, SquaredL2
from contraport.objectives.divergences.pairwise import PRESETS, Pairwise, SignedPairwise
from contraport.objectives.divergences.penalties import LogMean, MarginalPenalty, PlanUniformity
from contraport.objectives.divergences.quadratic import ClosedFormQuadratic, FenchelYoung

__all__ = [
    "KL",
    "PRESETS",
    "Affinity",
    "Agreement",
    "ClosedFormQuadratic",
    "Cost",
    "Debiased",
    "Divergence",
    "Energy",
    "FenchelYoung",
    "Hellinger",
    "JensenShannon",
    "LogMean",
    "LogSum",
    "Logistic",
    "LowVariance",
    "MarginalPenalty",
    "MeanKernel",
    "MeanSquare",
    "MovingLogSum",
    "NoiseContrast",
    "Pairwise",
    "PlanUniformity",
    "ReverseKL",
    "Rince",
    "SignedPairwise",
    "SquaredL2",
    "TotalVariation",
]
