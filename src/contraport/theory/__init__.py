"""Numerical studies of contrastive learning theory: each function returns numbers, drawn by ``.figure()``."""

from contraport.theory.augmentation import NoiseAndMixup, noise_and_mixup
from contraport.theory.collapse import Collapse, collapse
from contraport.theory.couplings import Coupling, Couplings, optimal_couplings
from contraport.theory.covariance import ContrastiveCovariance, contrastive_covariance, energy, pair_weights
from contraport.theory.linear import DeepLinear, LinearEncoder, deep_linear, linear_encoder
from contraport.theory.matching import MatchedPlan, Matching, matching
from contraport.theory.penalty import PenaltyResult, UniformityPenalty, uniformity_penalty
from contraport.theory.similarity import Similarity, similarity
from contraport.theory.simplex_path import SimplexPath, simplex_path
from contraport.theory.toy_problems import Mixture, gaussian_mixture
from contraport.theory.uniformity import FiveGaussians, PerfectUniformity, five_gaussians, perfect_uniformity

__all__ = [
    "Collapse",
    "ContrastiveCovariance",
    "Coupling",
    "Couplings",
    "DeepLinear",
    "FiveGaussians",
    "LinearEncoder",
    "MatchedPlan",
    "Matching",
    "Mixture",
    "NoiseAndMixup",
    "PenaltyResult",
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
