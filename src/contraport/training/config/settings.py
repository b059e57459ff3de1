"""All options of `contraport train` in one class, and those of `contraport advise`.

The keywords of `contraport.train`, the flags of the command line, the content of `config.yaml` and the options that may
change on resume are derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraport.catalog import apply_recipe
from contraport.errors import UsageError, check
from contraport.options import (
    TRAIN_AND_REPORT_EXTRAS,
    BaseOptions,
    Command,
    get_declared_options,
    int_in_range,
    matches_type,
    option,
    option_metadata,
    to_config_value,
)
from contraport.training.config.data_options import (
    DataPreparationSettings,
    DataSettings,
    ValidationSettings,
    ViewAndAuditSettings,
)
from contraport.training.config.network_options import NetworkSettings
from contraport.training.config.objective_options import ObjectiveSettings
from contraport.training.config.run_options import OptimizationSettings, RunSettings


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
            check(not self.freezes_some_encoder, message, "frozen")
        if self.matryoshka is not None and self.projection_size > 0:
            # Only the compared embeddings are nested: the features before them are not.
            good = self.representation in (None, "projection")
            message = f"representation: must be projection with matryoshka and a projection, got {self.representation}."
            check(good, message, "matryoshka")
        if self.predict is not None:
            check(self.projection == 0, f"projection: must be 0 with predict, got {self.projection}.", "predict")
            message = f"{self.freezing_cause}: cannot be combined with predict."
            check(not self.freezes_some_encoder, message, "predict")

    def resolve_representation(self, views: int) -> str:
        """Return `representation`, or its default for this number of views."""
        if self.matryoshka is not None and self.projection_size > 0:
            return "projection"
        frozen_default = "both" if views == 1 else "projection"
        return self.representation or (frozen_default if self.freezes_all_encoders else "concatenate")

    @property
    def recipe_or_objective_name(self) -> str:
        """Name of the recipe, else of the objective or predictive loss."""
        return self.recipe or str(to_config_value(self.objective or f"predict-{self.predict}")).strip("<>")

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


def check_config_types(config: Mapping[str, Any], where: object) -> None:
    """Raise `UsageError` if a value from `config.yaml` has the wrong type."""
    for name in config.keys() & RECORDED_OPTIONS_BY_NAME.keys():
        option, value = RECORDED_OPTIONS_BY_NAME[name], config[name]
        if value is not option.default and not matches_type(value, option.type, match_any=False):
            raise UsageError(f"run: {where} is corrupt: {name} is {value!r}.", kind="corrupt")


TRAIN_COMMAND_SPEC = Command(
    Settings,
    "contraport.training:train",
    "Train an encoder without labels.",
    details="""
        Each step creates random views of a batch of items (`views`, `augment`), encodes and projects them (`encoder`,
        `projection`), and scores the embeddings by an `objective`; `negatives`, `momentum`, `predictor` and
        `prototypes` change what they are compared with. A `recipe` is a named set of these options. The run folder
        holds `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/` and `train.log`. All randomness depends on `seed`
        alone. Ctrl-C stops a run; `resume` continues it and reaches the same weights, bit for bit on the CPU, as an
        uninterrupted run.
    """,
    examples=(
        "contraport train --data digits --epochs 20",
        "contraport train --data digits --recipe moco --queue_size 1024 --momentum 0.99:1:cosine",
        "contraport train --recipe swav --data photos/ --views 2+6 --encoder resnet18 --cache_chunk 128",
        "contraport train --recipe cmc --data photos/ --views colour --encoder resnet18",
        "contraport train --data photos/ --objective gca-uot --encoder resnet18 --batch_size 512 --out runs/photos",
        "contraport train --data digits --objective iot --objective_settings.iterations 3 --temperature 0.5:0.1",
        "contraport train --data photos/ --target soft:teacher.npz,temperature=0.2 --out runs/student",
        "contraport train --data people.csv --sample_weight survey_weight --constraint balanced:marginals=weights",
        "contraport train --data basic-motions --views frames --augment noise:0.1",
        "contraport train --data digits --recipe byol --print_config > mine.yaml",
        "contraport train --config mine.yaml --seed 1 --out runs/mine",
        "contraport train --resume --out runs/photos",
    ),
    resolve_options=apply_recipe,
    next_commands_path="contraport.cli.next_commands:after_train",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="train and evaluate",
    short_help_options=(
        "data",
        "recipe",
        "objective",
        "temperature",
        "augment",
        "audit",
        "encoder",
        "pretrained",
        "freeze",
        "epochs",
        "batch_size",
        "lr",
        "columns",
        "device",
        "amp",
        "seed",
        "out",
        "resume",
        "dry_run",
    ),
    docs_page="training",
)


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(BaseOptions):
    """Options of `contraport.advise`, including facts that the data do not show."""

    data: str | Path | Any = field(
        kw_only=False,
        metadata=option_metadata("Training data, as in `contraport train`: a name, a folder, a file or a URL."),
    )
    wrong_pairs: bool = option(False, "Some pairs may not belong together, such as captions of other images.")
    use_labels: bool = option(False, "Train on the labels of the data; otherwise they are for evaluation only.")
    dimensions: int | None = option(
        None, "Number of dimensions of the embeddings, if few are needed, such as 2 for a map.", check=int_in_range(1)
    )
    columns: dict[str, Any] | None = option(None, "Roles of table columns, as in `contraport train`.")
    image_size: int | None = option(
        None, "Side length in pixels to which images are resized, as in `contraport train`.", check=int_in_range(1)
    )


ADVISE_COMMAND_SPEC = Command(
    AdviseOptions,
    "contraport.training.advise:advise",
    "Recommend a training command for given data.",
    details="""
        Reads the training split and looks at the number and kind of its views, its labels, domains and number of
        items. Prints the command to start from, the reason for each of its options, and options to compare it with.
        The reasons cite measured comparisons, which `contraport docs choosing` lists.
    """,
    examples=(
        "contraport advise digits",
        "contraport advise pairs.parquet --wrong_pairs",
        "contraport advise people.csv --use_labels",
    ),
    printer_path="contraport.training.advise:print_advice",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="getting started",
    docs_page="choosing",
)
