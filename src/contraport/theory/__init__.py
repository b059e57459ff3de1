"""Numerical studies of contrastive learning theory, with figures."""

from contraport.options import keep_deprecated_module_names
from contraport.theory.alpha_cl import (
    ContrastiveCovariance,
    DeepLinearResult,
    LinearEncoderResult,
    contrastive_covariance,
    energy,
    pair_weights,
    train_deep_linear_encoder,
    train_linear_encoder,
)
from contraport.theory.augmentation_targets import AugmentationTargets, compute_noise_and_mixup_targets
from contraport.theory.dimensional_collapse_and_class_cosines import (
    CollapseComparison,
    ItemCosinesByClass,
    compare_collapse,
    compute_item_cosines_by_class,
)
from contraport.theory.entropic_transport_examples import (
    ConstraintComparison,
    Coupling,
    Couplings1D,
    PlanWithStatistics,
    SimplexEntropicPath,
    compare_constraints,
    compute_couplings_1d,
    solve_entropic_program,
)
from contraport.theory.mixture_samples_and_lbfgs import MixtureSample, sample_gaussians_on_circle
from contraport.theory.uniformity import (
    EmbeddingsAndPlansByPenalty,
    FiveGaussiansResult,
    PenaltyResult,
    UniformPoints,
    minimize_uniformity_loss,
    sweep_uniformity_penalty,
    train_on_five_gaussians,
)

__all__ = [
    "AugmentationTargets", "CollapseComparison", "ConstraintComparison", "ContrastiveCovariance", "Coupling",
    "Couplings1D", "DeepLinearResult", "EmbeddingsAndPlansByPenalty", "FiveGaussiansResult", "ItemCosinesByClass",
    "LinearEncoderResult", "MixtureSample", "PenaltyResult", "PlanWithStatistics", "SimplexEntropicPath",
    "UniformPoints", "compare_collapse", "compare_constraints", "compute_couplings_1d", "compute_item_cosines_by_class",
    "compute_noise_and_mixup_targets", "contrastive_covariance", "energy", "minimize_uniformity_loss", "pair_weights",
    "sample_gaussians_on_circle", "solve_entropic_program", "sweep_uniformity_penalty", "train_deep_linear_encoder",
    "train_linear_encoder", "train_on_five_gaussians",
]  # fmt: skip

__getattr__ = keep_deprecated_module_names(
    __name__,
    Couplings="Couplings1D", optimal_couplings="compute_couplings_1d",
    Collapse="CollapseComparison", collapse="compare_collapse", deep_linear="train_deep_linear_encoder",
    DeepLinear="DeepLinearResult", DeepLinearTraining="DeepLinearResult", five_gaussians="train_on_five_gaussians",
    FiveGaussians="FiveGaussiansResult", FiveGaussiansTraining="FiveGaussiansResult",
    gaussian_mixture="sample_gaussians_on_circle", linear_encoder="train_linear_encoder",
    LinearEncoder="LinearEncoderResult", LinearEncoderTraining="LinearEncoderResult", MatchedPlan="PlanWithStatistics",
    Matching="ConstraintComparison", matching="compare_constraints", Mixture="MixtureSample",
    noise_and_mixup="compute_noise_and_mixup_targets", NoiseAndMixup="AugmentationTargets",
    perfect_uniformity="minimize_uniformity_loss", PerfectUniformity="UniformPoints", Similarity="ItemCosinesByClass",
    similarity="compute_item_cosines_by_class", simplex_path="solve_entropic_program",
    SimplexPath="SimplexEntropicPath", EntropicPath="SimplexEntropicPath",
    sample_gaussian_mixture="sample_gaussians_on_circle", uniformity_penalty="sweep_uniformity_penalty",
    UniformityPenalty="EmbeddingsAndPlansByPenalty", PenaltySweep="EmbeddingsAndPlansByPenalty",
    ClassCosines="ItemCosinesByClass", compute_class_cosines="compute_item_cosines_by_class",
    compute_augmentation_targets="compute_noise_and_mixup_targets",
)  # fmt: skip
