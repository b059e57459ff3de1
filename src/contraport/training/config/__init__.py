"""Options of `contraport train`, one module per topic.

Checks that need a component, such as the name of an encoder, run when the component is built, before anything is
written.
"""

from contraport.training.config.data_options import DataPreparationSettings, DataSettings
from contraport.training.config.settings import RECORDED_OPTIONS_BY_NAME, TRAIN_OPTIONS, Settings, check_config_types

__all__ = [
    "RECORDED_OPTIONS_BY_NAME",
    "TRAIN_OPTIONS",
    "DataPreparationSettings",
    "DataSettings",
    "Settings",
    "check_config_types",
]
