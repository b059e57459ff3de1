"""Options of `contraport compare`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contraport._utils.lazy import import_object
from contraport.command import EXTRA, TRAIN_AND_EVALUATE, Command
from contraport.errors import check
from contraport.options import Options, get_options, int_in_range, matches_type, one_of, option
from contraport.training.config import ReadingSettings

_UNITS = {"s": 1, "m": 60, "h": 3600}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)([smh])")


def parse_duration(budget: str) -> float:
    """Return how long a time is, such as 90s, 30m or 2h.

    >>> parse_duration("30m")
    1800.0
    """
    found = _BUDGET.fullmatch(budget)
    check(found is not None, f"budget: expected a time such as 90s, 30m or 2h, got {budget!r}.")
    assert found is not None
    return float(found[1]) * _UNITS[found[2]]


def _budget(name: str, value: Any) -> None:
    check(isinstance(value, str), f"{name}: expected a time such as 90s, 30m or 2h, got {value!r}.")
    parse_duration(value)


def _names_of_measures(name: str, value: Sequence[str]) -> None:
    check(matches_type(value, Sequence[str]), f"{name}: expected a list of names, got {value!r}.")
    import_object("contraport.metrics:select_metrics")(value)


def _share(name: str, value: Any) -> None:
    check(matches_type(value, float) and 0 < value < 1, f"{name}: expected a number between 0 and 1, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class ComparedOptions(Options):
    """Options that say what is compared, and how each is trained."""

    suite: str | Path | None = option(
        None,
        "a grid that was saved: a name (see `contraport list suites`), or a .yaml file of these options; what is "
        "given beside it wins.",
        group="what is compared",
    )
    quick: bool = option(False, "of a suite, its smaller grid, which takes minutes.")
    data: Sequence[str | Path] = option((), "what to train on, as in `contraport train`; one or several.")
    objectives: Sequence[str | dict[str, Any]] = option(
        (),
        "the rows of the table: names of objectives or recipes, with settings after a colon, as in "
        "gca-uot:relaxation=0.2,temperature=0.1; in a file also a name of your own with options of `contraport train`. "
        "On a command line commas may stand between them; a value that has commas itself stands in quotes, as in "
        "\"gca-ince:target='domains:alpha=0.5,beta=0',info-nce\".",
    )
    settings: Sequence[str | dict[str, Any]] = option(
        ("standard",),
        "the columns of the table, for each of the data: plain, weak, standard, strong, corrupt:KIND:SEVERITY "
        "(several as in corrupt:'noise:3,blur:2'), "
        "mismatched:0.2, imbalanced:100, domains:style, or several of them joined, as in strong+mismatched:0.2; in a "
        "file also a name of your own with options of `contraport train`.",
    )
    over: Sequence[str] = option(
        (), "an option, or a setting of the objective, and its values: temperature=0.1,0.2; each makes rows of its own."
    )
    seeds: int = option(3, "how many seeds, from 0 on, each cell of the table is trained with.", check=int_in_range(1))
    baseline: str | None = option(None, "the row that the others are compared with; default: the first.")
    epochs: int | None = option(None, "as in `contraport train`.", check=int_in_range(1), group="how each is trained")
    encoder: str | None = option(None, "as in `contraport train`.")
    train: dict[str, Any] | None = option(None, "further options of `contraport train` that hold for all.")


@dataclass(frozen=True, kw_only=True)
class JudgingOptions(Options):
    """Options of evaluation and of the machine: metrics, searched settings, device, processes, budget."""

    metrics: Sequence[str] = option(
        ("linear_probe", "knn"),
        "what is measured (see `contraport list metrics`); the first is what settings are chosen by, and sentences "
        "are about.",
        check=_names_of_measures,
        formerly="measures",
        group="how each is judged",
    )
    tune: int = option(
        0,
        "search the own settings of each objective (temperature, relaxation, ...) with so many trials for each cell "
        "of the table, the same number for all, on a part of the training items, with one seed; 0: they stay as they "
        "are.",
        check=int_in_range(0),
    )
    validation: float = option(
        0.25,
        "share of the training items that the search judges on, which are trained on again after it.",
        check=_share,
    )
    budget: str | None = option(
        None,
        "begin no training that would end later than so long from now, such as 30m; what lacks is told, and the same "
        "command goes on.",
        check=_budget,
        group="computing",
    )
    processes: int = option(
        1, "how many trainings run at once, dealt to the GPUs where there are several.", check=int_in_range(1)
    )
    device: str = option("auto", "auto, cpu, cuda or mps.", check=one_of("auto", "cpu", "cuda", "mps"))
    out: str | Path | None = option(
        None, "the folder for the trainings and the tables; default: runs/compare, or runs/compare-SUITE.", scope="call"
    )
    dry_run: bool = option(False, "say what would be trained and how long it takes, and train nothing.", scope="call")
    progress: bool = option(
        True, "show a bar, or elsewhere a line for each training, on the standard error.", scope="call"
    )


# A dataclass takes the fields of its bases from the last to the first: that is the order of the options.
@dataclass(frozen=True, kw_only=True)
class CompareOptions(JudgingOptions, ReadingSettings, ComparedOptions):
    """Options of `contraport.compare`: what is compared, how its data are read, how each is judged."""


READING = get_options(ReadingSettings)
"""The options of reading data, which hold for all that is compared."""


COMPARE = Command(
    CompareOptions,
    "contraport.comparison:compare",
    "Compare objectives on a grid of settings and seeds, fairly.",
    details="""
        Each cell of the table is trained with every seed, and judged on test items that nothing was chosen by. The
        tables have the mean over seeds with its interval, and the difference from the baseline on the same seeds and
        items with an interval that holds for all comparisons of the table at once (Bonferroni's correction).

        The folder gets `table.md`, `table.csv`, `results.json`, `plot.png`, `page.html` and `commands.sh`, which trains
        each cell by itself. A cell that was trained is never trained again, and one that was stopped goes on: the same
        command, or one with more seeds or objectives, takes what is there.
    """,
    examples=(
        "contraport compare --data digits --objectives info-nce,rince:q=0.1 --settings standard,mismatched:0.2",
        "contraport compare --data digits --objectives nt-xent gca-uot --over temperature=0.1,0.2 --seeds 5",
        "contraport compare --suite gca --quick --out runs/gca",
        "contraport compare --suite gca --tune 8 --budget 2h --processes 2 --device cuda",
    ),
    printer="contraport.cli.console:print_comparison",
    extra=EXTRA,
    group=TRAIN_AND_EVALUATE,
    page="comparing",
)
