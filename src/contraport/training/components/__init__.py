"""From the settings of a training to its parts: data set, batches, objective, networks, pipeline, steps of an epoch.

Here alone they are made, for `contraport.train`, its replay, the evaluation of its run and the estimators.
"""

from contraport.training.components.assembly import Components, build, check_components
from contraport.training.components.data_builder import (
    build_batches,
    build_dataset,
    build_held_out_dataset,
    build_plain_views,
    build_views,
    feature_cache_blocker,
    normalize_freeze,
    num_cached_draws,
    steps_to_epochs,
)
from contraport.training.components.model_builder import build_untrained_model, fitted, load_initial_weights
from contraport.training.components.objective_builder import build_objective, build_schedules
from contraport.training.components.online_eval import EvalContextFactory, build_online_eval
from contraport.training.components.step_builder import build_pipeline

__all__ = [
    "Components",
    "EvalContextFactory",
    "build",
    "build_batches",
    "build_dataset",
    "build_held_out_dataset",
    "build_objective",
    "build_online_eval",
    "build_pipeline",
    "build_plain_views",
    "build_schedules",
    "build_untrained_model",
    "build_views",
    "check_components",
    "feature_cache_blocker",
    "fitted",
    "load_initial_weights",
    "normalize_freeze",
    "num_cached_draws",
    "steps_to_epochs",
]
