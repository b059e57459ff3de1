"""Numerical studies of contrastive learning theory: each function returns numbers, drawn by ``.figure()``."""

from contraport.options import keep_deprecated_names
from contraport.theory.alpha_cl import (
    ContrastiveCovariance,
    DeepLinearTraining,
    LinearEncoderTraining,
    contrastive_covariance,
    energy,
    pair_weights,
    train_deep_linear_encoder,
    train_linear_encoder,
)
from contraport.theory.augmentation_targets import AugmentationTargets, compute_augmentation_targets
from contraport.theory.entropic_transport import (
    ConstraintComparison,
    Coupling,
    Couplings,
    EntropicPath,
    PlanWithStatistics,
    compare_constraints,
    optimal_couplings,
    solve_entropic_program,
)
from contraport.theory.representations import ClassCosines, CollapseComparison, compare_collapse, compute_class_cosines
from contraport.theory.toy_problems import Mixture, gaussian_mixture
from contraport.theory.uniformity import (
    FiveGaussiansTraining,
    PenaltyResult,
    PenaltySweep,
    UniformPoints,
    minimize_uniformity_loss,
    sweep_uniformity_penalty,
    train_on_five_gaussians,
)

__all__ = [
    "AugmentationTargets", "ClassCosines", "CollapseComparison", "ConstraintComparison", "ContrastiveCovariance",
    "Coupling", "Couplings", "DeepLinearTraining", "EntropicPath", "FiveGaussiansTraining", "LinearEncoderTraining",
    "Mixture", "PenaltyResult", "PenaltySweep", "PlanWithStatistics", "UniformPoints", "compare_collapse",
    "compare_constraints", "compute_augmentation_targets", "compute_class_cosines", "contrastive_covariance",
    "energy", "gaussian_mixture", "minimize_uniformity_loss", "optimal_couplings", "pair_weights",
    "solve_entropic_program", "sweep_uniformity_penalty", "train_deep_linear_encoder", "train_linear_encoder",
    "train_on_five_gaussians",
]  # fmt: skip

__getattr__ = keep_deprecated_names(
    __name__,
    Collapse="CollapseComparison",
    DeepLinear="DeepLinearTraining",
    FiveGaussians="FiveGaussiansTraining",
    LinearEncoder="LinearEncoderTraining",
    MatchedPlan="PlanWithStatistics",
    Matching="ConstraintComparison",
    NoiseAndMixup="AugmentationTargets",
    PerfectUniformity="UniformPoints",
    Similarity="ClassCosines",
    SimplexPath="EntropicPath",
    UniformityPenalty="PenaltySweep",
    collapse="compare_collapse",
    deep_linear="train_deep_linear_encoder",
    five_gaussians="train_on_five_gaussians",
    linear_encoder="train_linear_encoder",
    matching="compare_constraints",
    noise_and_mixup="compute_augmentation_targets",
    perfect_uniformity="minimize_uniformity_loss",
    similarity="compute_class_cosines",
    simplex_path="solve_entropic_program",
    uniformity_penalty="sweep_uniformity_penalty",
)
