"""The settings of a training, by what they are about: each with its name, type, default, check and help.

A file has the options of one part of a training, what judges them, and what follows from them. What the part itself
alone can judge (the name of an encoder, a constraint) it judges when it is built, which is before anything is touched
too.
"""

from contraport.verbs._of_training.data import DataSettings, ReadingSettings, ValidationSettings
from contraport.verbs._of_training.networks import NetworkSettings
from contraport.verbs._of_training.objective import ObjectiveSettings
from contraport.verbs._of_training.optimisation import OptimisationSettings
from contraport.verbs._of_training.running import RunningSettings
from contraport.verbs._of_training.views import ViewSettings

__all__ = [
    "DataSettings",
    "NetworkSettings",
    "ObjectiveSettings",
    "OptimisationSettings",
    "ReadingSettings",
    "RunningSettings",
    "ValidationSettings",
    "ViewSettings",
]
