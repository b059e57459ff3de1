"""Options of `contraport train`, by the part of a training: each with its name, type, default, check and help.

A file has the options of one part, their checks, and what follows from them. What only the part itself can check (the
name of an encoder, a constraint) it checks when it is built, which is before anything is written too.
"""

from contraport.training.config.data import DataSettings, ReadingSettings, ValidationSettings
from contraport.training.config.networks import NetworkSettings
from contraport.training.config.objective import ObjectiveSettings
from contraport.training.config.optimization import OptimizationSettings
from contraport.training.config.running import RunningSettings
from contraport.training.config.settings import KEPT, OPTIONS, TRAIN, Settings, check_kept
from contraport.training.config.views import ViewSettings

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
