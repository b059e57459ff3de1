"""Definitions of the commands `contraport train` and `advise`, and their options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraport.catalog import apply_recipe
from contraport.options import TRAIN_AND_REPORT_EXTRAS, BaseOptions, Command, int_in_range, option, option_metadata
from contraport.training.config.settings import Settings

TRAIN_COMMAND_SPEC = Command(
    Settings,
    "contraport.training:train",
    "Train an encoder without labels.",
    details="""
        Each step creates random views of a batch of items (`views`, `augment`), encodes and projects them
        (`encoder`, `projection`), and scores the embeddings by an `objective`; `negatives`, `momentum`, `predictor` and
        `prototypes` change what they are compared with. A `recipe` is a named set of these options. The run folder
        holds `config.yaml`, `metrics.jsonl`, `checkpoints/`, `model/` and `train.log`. All randomness depends on `seed`
        alone. Ctrl-C stops a run; `resume` continues it and reaches the same weights, bit for bit on the CPU, as an
        uninterrupted run.
    """,
    examples=(
        "contraport train --data digits --epochs 20",
        "contraport train --data digits --recipe moco --queue_size 1024 --momentum 0.99:1:cosine",
        "contraport train --recipe swav --data photos/ --views 2+6 --encoder resnet18 --cache_chunk 128",
        "contraport train --data photos/ --objective gca-uot --encoder resnet18 --batch_size 512 --out runs/photos",
        "contraport train --data digits --objective iot --objective_settings.iterations 3 --temperature 0.5:0.1",
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
        "views",
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
    """Options of `contraport.advise`, including facts that only the user knows."""

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
    ignore_labels: bool = option(False, "Drop the labels of the data, as in `contraport train`.")


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
