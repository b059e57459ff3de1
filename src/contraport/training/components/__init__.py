"""Builds the components of a training from its settings: data, batches, objective, networks, training module.

`contraport.train`, `load_failed_step`, the evaluation of a run and the estimators all build their components here.
"""

from contraport.training.components.assembly import TrainingComponents, build_components, check_component_settings
from contraport.training.components.data_builder import (
    build_batch_loader,
    build_dataset,
    build_unaugmented_views,
    build_views,
    count_cached_draws,
    feature_cache_unsupported_reason,
    find_held_out_dataset,
    with_epochs_from_steps,
    with_full_freeze_as_true,
)
from contraport.training.components.model_builder import (
    build_untrained_copy,
    load_initial_weights,
    with_defaults_from_weights,
)
from contraport.training.components.step_builder import build_loss_schedules, build_objective, build_training_module

__all__ = [
    "TrainingComponents",
    "build_batch_loader",
    "build_components",
    "build_dataset",
    "build_loss_schedules",
    "build_objective",
    "build_training_module",
    "build_unaugmented_views",
    "build_untrained_copy",
    "build_views",
    "check_component_settings",
    "count_cached_draws",
    "feature_cache_unsupported_reason",
    "find_held_out_dataset",
    "load_initial_weights",
    "with_defaults_from_weights",
    "with_epochs_from_steps",
    "with_full_freeze_as_true",
]
