"""Options of `contraport train`, by the part of a training: each with its name, type, default, check and help.

A file has the options of one part, their checks, and what follows from them. What only the part itself can check (the
name of an encoder, a constraint) it checks when it is built, which is before anything is written too.
"""

from contraport.training.config.data_options import DataSettings, ReadingSettings, ValidationSettings
from contraport.training.config.network_options import NetworkSettings
from contraport.training.config.objective_options import ObjectiveSettings
from contraport.training.config.optimizer_options import OptimizationSettings
from contraport.training.config.run_options import RunningSettings
from contraport.training.config.settings import KEPT, OPTIONS, TRAIN, Settings, check_kept
from contraport.training.config.view_options import ViewSettings

__all__ = [
    "KEPT",
    "OPTIONS",
    "TRAIN",
    "DataSettings",
    "NetworkSettings",
    "ObjectiveSettings",
    "OptimizationSettings",
    "ReadingSettings",
    "RunningSettings",
    "Settings",
    "ValidationSettings",
    "ViewSettings",
    "check_kept",
]
