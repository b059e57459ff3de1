"""Options of `contraport compare`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from contraport.errors import check
from contraport.evaluation.command_options import check_metric_names
from contraport.options import (
    TRAIN_AND_REPORT_EXTRAS,
    BaseOptions,
    Command,
    check_open_unit_interval,
    get_declared_options,
    int_in_range,
    option,
)
from contraport.runs.shared_options import progress_field, training_device_field
from contraport.training.config import DataPreparationSettings


def parse_duration(budget: str) -> float:
    """Parse a duration in one unit, such as 90s, 30m or 2h, into seconds.

    >>> parse_duration("30m")
    1800.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", budget) if isinstance(budget, str) else None
    check(match is not None, f"budget: must be a duration such as 90s, 30m or 2h, got {budget!r}.")
    assert match is not None
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


@dataclass(frozen=True, kw_only=True)
class GridOptions(BaseOptions):
    """Options for the rows, columns and training runs of a comparison table."""

    suite: str | Path | None = option(
        None,
        "Saved grid: a name (see `contraport list suites`), or a .yaml file of these options. Other options override "
        "it.",
        group="what is compared",
    )
    quick: bool = option(False, "Use the smaller grid of the suite, which takes minutes.")
    data: Sequence[str | Path] = option((), "Training data, as in `contraport train`; one or several.")
    objectives: Sequence[str | dict[str, Any]] = option(
        (),
        "Rows of the table: names of objectives or recipes, with settings after a colon, as in "
        "gca-uot:relaxation=0.2,temperature=0.1; in a .yaml file also NAME: {options of `contraport train`}. "
        "A comma before name=value continues an entry, any other begins a new one; quote a value that contains "
        "commas, as in "
        "\"gca-ince:target='domains:alpha=0.5,beta=0',info-nce\".",
    )
    settings: Sequence[str | dict[str, Any]] = option(
        ("standard",),
        "Columns of the table, for each dataset: an augmentation (weak, standard or strong) or plain (the default for "
        "the data). To change all items: corrupt:KIND:SEVERITY (as `corrupt` of `contraport train`; for several "
        "\"corrupt:'noise:3,blur:2'\"), domains:style or domains:rotate (four styles or rotations). To change the "
        "training items only: mismatched:0.2 (share of pairs), imbalanced:100 (largest over smallest class). Several "
        "are joined by +; in a .yaml file also NAME: {options of `contraport train`}.",
    )
    over: Sequence[str] = option(
        (), "Option or objective setting with several values, such as temperature=0.1,0.2: a row for each value."
    )
    seeds: int = option(3, "Number of seeds per cell of the table: the seeds 0, 1, 2 and so on.", check=int_in_range(1))
    baseline: str | None = option(None, "Row that the others are compared with; default: the first.")
    epochs: int | None = option(
        None, "Number of training epochs, as in `contraport train`.", check=int_in_range(1), group="training"
    )
    encoder: str | None = option(None, "Encoder, as in `contraport train`.")
    train: dict[str, Any] | None = option(
        None, "Further options of `contraport train` for all cells, such as --train.lr 0.01.", contains_options=True
    )


# A dataclass takes the fields of its bases from the last to the first, then its own, as the order of the options.
@dataclass(frozen=True, kw_only=True)
class CompareOptions(DataPreparationSettings, GridOptions):
    """All options of `contraport.compare`."""

    metrics: Sequence[str] = option(
        (),
        "Metrics (see `contraport list metrics`). The first one is used by `tune` and described in the summary; "
        "default: the main ones of `contraport evaluate` on the first dataset, linear_probe and knn if it has labels.",
        check=check_metric_names,
        deprecated_name="measures",
        group="evaluation",
    )
    tune: int = option(
        0,
        "Number of search trials for the settings of each objective (temperature, relaxation, ...) in each cell of the "
        "table, on a part of the training items, with one seed; 0: no search.",
        check=int_in_range(0),
    )
    validation: float = option(
        0.25,
        "Share of the training items that `tune` holds out for validation; the final training runs use all items.",
        check=check_open_unit_interval,
    )
    budget: str | None = option(
        None,
        "Maximum duration, such as 30m: a training run that would end later is not started. Repeat the command to "
        "continue; default: none.",
        check=lambda _, value: parse_duration(value),
        lifetime="call",
        group="computing",
    )
    processes: int = option(
        1, "Number of training runs at once, distributed over the GPUs.", check=int_in_range(1), lifetime="machine"
    )
    device: str = training_device_field()
    out: str | Path | None = option(
        None,
        "Output folder for training runs and tables; default: runs/compare, or runs/compare-SUITE.",
        lifetime="call",
    )
    dry_run: bool = option(
        False, "Print the number of training runs and their estimated duration, and train nothing.", lifetime="call"
    )
    progress: bool = progress_field("Show a progress bar, or a line per training run, on standard error.")


COMPARE_COMMAND_SPEC = Command(
    CompareOptions,
    "contraport.comparison:compare",
    "Compare objectives on a grid of settings and seeds.",
    details="""
        Each objective is trained in each setting with every seed and evaluated on test items, which `tune` never uses.
        The tables contain the mean over seeds ± half of its 95% interval, and the difference from the baseline on the
        same seeds and items, with an interval that holds for all comparisons of the table (Bonferroni correction).

        The output folder contains `table.md`, `table.csv`, `results.json`, `plot.png`, `page.html` and `commands.sh`,
        the commands that train each cell by itself. The same command, or one with more seeds or objectives, resumes
        interrupted training runs and reuses finished ones.
    """,
    examples=(
        "contraport compare --data digits --objectives info-nce,rince:q=0.1 --settings standard,mismatched:0.2",
        "contraport compare --data digits --objectives nt-xent gca-uot --over temperature=0.1,0.2 --seeds 5",
        "contraport compare --suite gca --quick --out runs/gca",
        "contraport compare --suite gca --tune 8 --budget 2h --processes 2 --device cuda",
    ),
    printer_path="contraport.cli.result_printers:print_comparison",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="train and evaluate",
    # Options of data preparation are those of `train`.
    short_help_options=tuple(
        one.name
        for one in fields(CompareOptions)
        if one.name not in {*get_declared_options(DataPreparationSettings), "validation", "progress"}
    ),
    docs_page="evaluating comparing",
)
