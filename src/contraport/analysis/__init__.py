"""The theory made runnable: each function returns numbers, and a figure of them where it is asked for one."""

from contraport.analysis.augmentation import NoiseAndMixup, noise_and_mixup
from contraport.analysis.collapse import Collapse, collapse
from contraport.analysis.couplings import Coupling, Couplings, optimal_couplings
from contraport.analysis.covariance import ContrastiveCovariance, contrastive_covariance, energy, pair_weights
from contraport.analysis.linear import DeepLinear, LinearEncoder, deep_linear, linear_encoder
from contraport.analysis.matching import Matched, Matching, matching
from contraport.analysis.penalty import Penalised, UniformityPenalty, uniformity_penalty
from contraport.analysis.similarity import Similarity, similarity
from contraport.analysis.simplex import SimplexPath, simplex_path
from contraport.analysis.toy import Mixture, gaussian_mixture
from contraport.analysis.uniformity import FiveGaussians, PerfectUniformity, five_gaussians, perfect_uniformity

__all__ = [
    "Collapse",
    "ContrastiveCovariance",
    "Coupling",
    "Couplings",
    "DeepLinear",
    "FiveGaussians",
    "LinearEncoder",
    "Matched",
    "Matching",
    "Mixture",
    "NoiseAndMixup",
    "Penalised",
    "PerfectUniformity",
    "Similarity",
    "SimplexPath",
    "UniformityPenalty",
    "collapse",
    "contrastive_covariance",
    "deep_linear",
    "energy",
    "five_gaussians",
    "gaussian_mixture",
    "linear_encoder",
    "matching",
    "noise_and_mixup",
    "optimal_couplings",
    "pair_weights",
    "perfect_uniformity",
    "similarity",
    "simplex_path",
    "uniformity_penalty",
]
