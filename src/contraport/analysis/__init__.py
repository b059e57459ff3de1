"""The theory made runnable: each function returns numbers, and a figure of them where it is asked for one."""

from contraport.analysis.augmentation import NoiseAndMixup, noise_and_mixup
from contraport.analysis.collapse import Collapse, collapse
from contraport.analysis.covariance import ContrastiveCovariance, contrastive_covariance, energy, pair_weights
from contraport.analysis.linear import DeepLinear, LinearEncoder, deep_linear, linear_encoder
from contraport.analysis.toy import Mixture, gaussian_mixture
from contraport.analysis.uniformity import FiveGaussians, PerfectUniformity, five_gaussians, perfect_uniformity

__all__ = [
    "Collapse",
    "ContrastiveCovariance",
    "DeepLinear",
    "FiveGaussians",
    "LinearEncoder",
    "Mixture",
    "NoiseAndMixup",
    "PerfectUniformity",
    "collapse",
    "contrastive_covariance",
    "deep_linear",
    "energy",
    "five_gaussians",
    "gaussian_mixture",
    "linear_encoder",
    "noise_and_mixup",
    "pair_weights",
    "perfect_uniformity",
]
