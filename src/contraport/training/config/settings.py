"""Settings of a training, the options of `contraport train`: one class of those of all parts.

From them follow the keywords of `contraport.train`, the options of the command line and their groups, what
`config.yaml` keeps, and what may change when a run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contraport.catalog import resolve_recipe
from contraport.command import EXTRA, TRAIN_AND_EVALUATE, Command
from contraport.errors import UsageError, check
from contraport.options import display_name, get_options, matches_type
from contraport.training.config.data_options import DataSettings, ReadingSettings, ValidationSettings
from contraport.training.config.network_options import NetworkSettings
from contraport.training.config.objective_options import ObjectiveSettings
from contraport.training.config.optimizer_options import OptimizationSettings
from contraport.training.config.run_options import RunningSettings
from contraport.training.config.view_options import ViewSettings


# A dataclass takes the fields of its bases from the last to the first: that is the order of the options.
@dataclass(frozen=True, kw_only=True)
class Settings(
    RunningSettings,
    ReadingSettings,
    ValidationSettings,
    OptimizationSettings,
    NetworkSettings,
    ViewSettings,
    ObjectiveSettings,
    DataSettings,
):
    """Settings of a training; see `contraport.train` for each.

    Raises:
        UsageError: a value that is wrong, or values that do not go together.

    >>> Settings(data="digits", epochs=3).grad_accum_steps
    1
    >>> Settings(epochs=0)
    Traceback (most recent call last):
    contraport.errors.UsageError: epochs: expected a whole number from 1 on, got 0.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        told = "audit: finds out which pairs belong together, and a target says so; give one of the two."
        check(not (self.audit and self.target is not None), told)
        told = "teacher: it knows none of the pairs that audit puts beside the items; give one of the two."
        check(not (self.audit and self.teacher is not None), told)
        told = f"audit: judges by what is learned; expected no {self.freeze_source} with it."
        check(not (self.audit and self.freezes), told)
        if self.predict is not None:
            check(self.projection == 0, f"projection: predict decodes features; expected 0, got {self.projection}.")
            check(
                not self.freezes,
                f"{self.freeze_source}: predict decodes what the encoder gives; expected one of the two.",
            )

    @property
    def method(self) -> str:
        """Name of the method: the recipe, or the objective, or what it predicts by."""
        return self.recipe or display_name(self.objective or f"predict-{self.predict}")

    def kept(self) -> dict[str, Any]:
        """Return what `config.yaml` keeps: the settings that say what the run is, as plain values.

        >>> from pathlib import Path
        >>> kept = Settings(data=Path("photos"), objective=object(), out="runs/x").kept()
        >>> kept["data"], kept["objective"], "out" in kept
        ('photos', '<object>', False)
        """
        return {name: known.serialize(getattr(self, name)) for name, known in KEPT.items()}


OPTIONS = get_options(Settings)
"""Declaration of each setting, by its name."""

KEPT = {name: known for name, known in OPTIONS.items() if known.scope != "call"}
"""Those that `config.yaml` keeps."""


def check_kept(config: Mapping[str, Any], where: object) -> None:
    """Raise `UsageError` unless the values of a `config.yaml` can be settings; names that are none are passed."""
    for name in config.keys() & KEPT.keys():
        known, value = KEPT[name], config[name]
        if value is not known.default and not matches_type(value, known.type, objects=False):
            raise UsageError(f"run: {where} is corrupt: {name} is {value!r}.")


TRAIN = Command(
    Settings,
    "contraport.training:train",
    "Train an encoder without labels.",
    details="""
        A step makes random views of a batch of items (`views`, `augment`), encodes and projects each (`encoder`,
        `projection`), and compares the embeddings (`objective`): those of one item are pulled together, against the
        rest of the batch and what `negatives`, `momentum`, `predictor` and `prototypes` put beside it. A `recipe` is
        a named choice of these. The folder holds `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/` and
        `train.log`. All that is random depends on `seed` alone. Ctrl-C stops a run; `resume` goes on and ends at the
        same weights, bit for bit on the CPU, as if it had never stopped.
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
    resolve=resolve_recipe,
    extra=EXTRA,
    group=TRAIN_AND_EVALUATE,
    common_options=(
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
    page="training",
)
