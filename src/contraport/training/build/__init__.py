"""From the settings of a training to its parts: data set, batches, objective, networks, pipeline, steps of an epoch.

Here alone they are made, for `contraport.train`, its replay, the evaluation of its run and the estimators.
"""

from contraport.training.build.model_parts import build_initial, build_untrained, fitted
from contraport.training.build.monitored import Monitored, build_monitored
from contraport.training.build.objective_parts import build_objective, build_schedules
from contraport.training.build.pipeline_parts import build_pipeline
from contraport.training.build.training_data import (
    build_batches,
    build_dataset,
    build_held_out,
    build_plain_views,
    build_views,
    draws_kept,
    held_at_once,
    in_epochs,
    why_none_is_kept,
)
from contraport.training.build.whole import Built, build, check_parts

__all__ = [
    "Built",
    "Monitored",
    "build",
    "build_batches",
    "build_dataset",
    "build_held_out",
    "build_initial",
    "build_monitored",
    "build_objective",
    "build_pipeline",
    "build_plain_views",
    "build_schedules",
    "build_untrained",
    "build_views",
    "check_parts",
    "draws_kept",
    "fitted",
    "held_at_once",
    "in_epochs",
    "why_none_is_kept",
]
