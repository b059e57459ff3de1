"""Options of `contraport train`, one module per topic.

Checks that need a component, such as the name of an encoder, run when the component is built, before anything is
written.
"""

from contraport.training.config.data_options import DataPreparationSettings, DataSettings
from contraport.training.config.settings import (
    ADVISE_COMMAND_SPEC,
    RECORDED_OPTIONS_BY_NAME,
    TRAIN_COMMAND_SPEC,
    TRAIN_OPTIONS,
    AdviseOptions,
    Settings,
    check_config_types,
)

__all__ = [
    "ADVISE_COMMAND_SPEC",
    "RECORDED_OPTIONS_BY_NAME",
    "TRAIN_COMMAND_SPEC",
    "TRAIN_OPTIONS",
    "AdviseOptions",
    "DataPreparationSettings",
    "DataSettings",
    "Settings",
    "check_config_types",
]
