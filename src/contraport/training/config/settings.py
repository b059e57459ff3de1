"""All options of `contraport train` in one class.

The keywords of `contraport.train`, the flags of the command line, the content of `config.yaml` and the options that may
change on resume are derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contraport.errors import UsageError, check
from contraport.options import get_declared_options, matches_type, to_config_value
from contraport.training.config.data_options import (
    DataPreparationSettings,
    DataSettings,
    ValidationSettings,
    ViewAndAuditSettings,
)
from contraport.training.config.network_options import NetworkSettings
from contraport.training.config.objective_options import ObjectiveSettings
from contraport.training.config.optimization_options import OptimizationSettings
from contraport.training.config.run_options import RunSettings


# A dataclass orders the fields of its bases from the last to the first; that is the order of the options in the help.
@dataclass(frozen=True, kw_only=True)
class Settings(
    RunSettings,
    DataPreparationSettings,
    ValidationSettings,
    OptimizationSettings,
    NetworkSettings,
    ViewAndAuditSettings,
    ObjectiveSettings,
    DataSettings,
):
    """All settings of a training run, which `contraport.train` documents.

    Raises:
        UsageError: an invalid value, or values that exclude one another.

    >>> Settings(data="digits", epochs=3).grad_accum_steps
    1
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.audit:
            reason = "a target states which pairs belong together, and an audit estimates it"
            check(self.target is None, f"audit: cannot be combined with target: {reason}.", "target")
            message = "audit: cannot be combined with early_stopping: it scores the pairs in all parts of the training."
            check(self.early_stopping is None, message, "early_stopping")
            message = "audit: cannot be combined with teacher, which has no features of the audit's known mismatches."
            check(self.teacher is None, message, "teacher")
            message = "audit: cannot be combined with mined negatives; audit first, and use `contraport mine --audit`."
            check(self.mined_negatives_spec is None, message, "mined")
            reason = "it scores pairs by what the encoder learns"
            message = f"audit: cannot be combined with {self.freezing_cause}: {reason}."
            check(not self.freezes_some_encoder_throughout, message, "frozen")
        if self.matryoshka is not None and self.projection_size_or_zero > 0:
            # Only the compared embeddings are nested: the features before them are not.
            good = self.representation in (None, "projection")
            message = f"representation: must be projection with matryoshka and a projection, got {self.representation}."
            check(good, message, "matryoshka")
        if self.predict is not None:
            check(self.projection == 0, f"projection: must be 0 with predict, got {self.projection}.", "predict")
            check(
                not self.freezes_some_encoder_throughout,
                f"{self.freezing_cause}: cannot be combined with predict.",
                "predict",
            )

    def resolve_representation(self, views: int) -> str:
        """Return `representation`, or its default for this number of views."""
        if self.matryoshka is not None and self.projection_size_or_zero > 0:
            return "projection"
        frozen_default = "both" if views == 1 else "projection"
        return self.representation or (frozen_default if self.freezes_all_encoders_throughout else "concatenate")

    @property
    def recipe_or_objective_name(self) -> str:
        """Name of the recipe, else of the objective or predictive loss."""
        objective = self.objective or f"predict-{self.predict}"
        name = objective.replace("_", "-") if isinstance(objective, str) else str(to_config_value(objective))
        return self.recipe or name.strip("<>")

    def to_config(self) -> dict[str, Any]:
        """Return the content of `config.yaml`, the settings of the whole run.

        >>> from pathlib import Path
        >>> config = Settings(data=Path("photos"), objective=object(), out="runs/x").to_config()
        >>> config["data"], config["objective"], "out" in config
        ('photos', '<object>', False)
        """
        return {name: option.serialize(getattr(self, name)) for name, option in RECORDED_OPTIONS_BY_NAME.items()}


TRAIN_OPTIONS = get_declared_options(Settings)
"""Options of `contraport train` by name."""

RECORDED_OPTIONS_BY_NAME = {name: option for name, option in TRAIN_OPTIONS.items() if option.lifetime != "call"}
"""Options that `config.yaml` records: all except those of a single call, such as `resume`."""


def check_config_types(config: Mapping[str, Any], config_path: object) -> None:
    """Raise `UsageError` if a value from `config.yaml` has the wrong type."""
    for name in config.keys() & RECORDED_OPTIONS_BY_NAME.keys():
        option, value = RECORDED_OPTIONS_BY_NAME[name], config[name]
        if value is not option.default and not matches_type(value, option.type, match_any=False):
            raise UsageError(f"run: {config_path} is corrupt: {name} is {value!r}.", kind="corrupt")
