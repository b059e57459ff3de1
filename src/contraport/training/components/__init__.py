"""Builds the components of a training from its settings: data, batches, objective, networks, training module.

`contraport.train`, `load_failed_step`, the evaluation of a run and the estimators all build their components here.
"""

from contraport.training.components.assembly import Components, build_components, check_components
from contraport.training.components.data_builder import (
    build_batch_loader,
    build_dataset,
    build_held_out_dataset,
    build_unaugmented_views,
    build_views,
    feature_cache_blocker,
    normalize_freeze,
    num_cached_draws,
    with_epochs_from_steps,
)
from contraport.training.components.model_builder import (
    build_untrained_model,
    load_initial_weights,
    with_encoder_of_initial_weights,
)
from contraport.training.components.objective_builder import build_loss_schedules, build_objective
from contraport.training.components.online_eval import EvalContextFactory, build_online_eval
from contraport.training.components.step_builder import build_training_module

__all__ = [
    "Components",
    "EvalContextFactory",
    "build_batch_loader",
    "build_components",
    "build_dataset",
    "build_held_out_dataset",
    "build_loss_schedules",
    "build_objective",
    "build_online_eval",
    "build_training_module",
    "build_unaugmented_views",
    "build_untrained_model",
    "build_views",
    "check_components",
    "feature_cache_blocker",
    "load_initial_weights",
    "normalize_freeze",
    "num_cached_draws",
    "with_encoder_of_initial_weights",
    "with_epochs_from_steps",
]
