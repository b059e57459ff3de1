"""Options of `contraport train`, one module per topic, with type, default, check and help of each option.

Checks that need a component, such as the name of an encoder, run when the component is built, before anything is
written.
"""

from contraport.training.config.advise_options import ADVISE
from contraport.training.config.data_options import DataReadingSettings, DataSettings, ValidationSettings
from contraport.training.config.network_options import NetworkSettings
from contraport.training.config.objective_options import ObjectiveSettings
from contraport.training.config.optimizer_options import OptimizationSettings
from contraport.training.config.run_options import RunSettings
from contraport.training.config.settings import OPTIONS, RECORDED_OPTIONS, TRAIN, Settings, check_config_types
from contraport.training.config.view_options import ViewSettings

__all__ = [
    "ADVISE",
    "OPTIONS",
    "RECORDED_OPTIONS",
    "TRAIN",
    "DataReadingSettings",
    "DataSettings",
    "NetworkSettings",
    "ObjectiveSettings",
    "OptimizationSettings",
    "RunSettings",
    "Settings",
    "ValidationSettings",
    "ViewSettings",
    "check_config_types",
]
