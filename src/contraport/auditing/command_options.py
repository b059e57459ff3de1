"""Options of `contraport audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from contraport.errors import check, check_nonnegative, check_positive
from contraport.options import (
    TRAIN_AND_REPORT_EXTRAS,
    BaseOptions,
    Command,
    get_declared_options,
    int_in_range,
    matches_type,
    one_of,
    option,
    option_metadata,
)
from contraport.runs.shared_options import num_workers_field, progress_field, seed_field, training_device_field
from contraport.training.config.data_options import serialize_data_option
from contraport.training.config.network_options import EncoderOption, encoder_field

Cleaning: TypeAlias = Literal["drop", "repair", "weigh"]
"""Option that requests a cleaned copy of the data."""

STATISTIC_NAMES = (
    "combined", "neighbors", "canonical", "likeness", "cosine", "softmax", "csls", "rank", "balanced", "unbalanced",
)  # fmt: skip
"""Statistics of pairs by name; `contraport.auditing.pairs.pair_scoring` computes them, and needs torch."""

TRAINING_OPTION_NAMES = ("encoder", "objective", "temperature", "projection", "epochs", "lr", "weight_decay")
"""Names of the options that are passed to the training of an encoder under the same name."""

_UNUSED_OPTION_NAMES_BY_METHOD = {
    "online": ("folds", "repeats", "rounds"),
    "crossfit": (),
    "frozen": ("folds", "repeats", "batch_size", *TRAINING_OPTION_NAMES),
}
"""Options that have no effect on each method."""


def _check_several_distinct_views(name: str, value: Any) -> None:
    """Raise `UsageError` unless a value lists at least two distinct views."""
    good = matches_type(value, Sequence[int | str]) and len(value) != 1 and len(set(map(str, value))) == len(value)
    good = good and all(isinstance(view, str) or view >= 0 for view in value)
    check(good, f"{name}: must be two or more different view names, or numbers from 0, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class AuditOptions(BaseOptions):
    """Options of the function `contraport.audit`.

    Raises:
        UsageError: a value is invalid, or values exclude each other.
    """

    data: str | Path | Any | None = field(
        default=None,
        kw_only=False,
        metadata=option_metadata(
            "Data of two or more views, as in `contraport train`; in Python also a Dataset or two arrays. The data's "
            "own test split is not audited, nor are items that lack a view.",
            serialize=serialize_data_option,
            group="the pairs",
            is_cli_flag=True,
        ),
    )
    given_views: Sequence[int | str] = option(
        (),
        "Views to audit: names (columns of a table, `view0` of an .npz) or numbers from 0. With three or more, each "
        "pair of views is audited, and the views of an item that do not belong are flagged; default: all views.",
        check=_check_several_distinct_views,
        deprecated_name="views",
    )
    columns: dict[str, Any] | None = option(
        None,
        'Roles of the columns of a table, such as ``{"views": ["lidar_*", "radar_*"]}`` for two views of numbers, as '
        "in `contraport train`; default: by their names and types, where all columns of numbers are one view.",
    )
    image_size: int | None = option(None, "Resize images to squares of this side in pixels.", check=int_in_range(1))
    root: str | Path | None = option(
        None, "Folder with the files of named data (see `contraport list data`).", lifetime="machine"
    )
    method: str = option(
        "online",
        "Scoring method: online (one training run that scores its pairs five times and drops suspected mismatches), "
        "crossfit (encoders score pairs that they were not trained on) or frozen (for vectors; trains nothing).",
        check=one_of("online", "crossfit", "frozen"),
        group="method",
    )
    statistic: str | None = option(
        None,
        "Statistic that scores a pair in a crossfit or frozen audit (see `contraport docs audit`): combined, "
        "neighbors, canonical or likeness; if both views are in one space also cosine, softmax, csls, rank, balanced "
        "or unbalanced; default: combined. An online audit always uses combined.",
        check=one_of(*STATISTIC_NAMES),
    )
    folds: int = option(
        5, "Number of folds of a crossfit: each is scored by an encoder trained on the others.", check=int_in_range(2)
    )
    repeats: int = option(1, "Repeats of a crossfit with other folds; scores are averaged.", check=int_in_range(1))
    rounds: int = option(
        2,
        "Rounds of a crossfit or frozen audit. Each round leaves the mismatches suspected in earlier rounds out of "
        "training and out of the neighbors; the scores of a crossfit are averaged over rounds.",
        check=int_in_range(1),
    )
    encoder: EncoderOption = encoder_field("training")
    objective: str = option("info-nce", "Training objective (see `contraport list objectives`).")
    temperature: float | None = option(
        None,
        "Temperature of the objective; default: 0.2 for info-nce, else that of the objective.",
        check=check_positive,
    )
    projection: int = option(0, "Width of the projection that the objective compares; 0: none.", check=int_in_range(0))
    epochs: int = option(36, "Number of training epochs.", check=int_in_range(1))
    batch_size: int = option(256, "Batch size, at most a quarter of the pairs.", check=int_in_range(2))
    lr: float | None = option(None, "Peak learning rate, as in `contraport train`.", check=check_positive)
    weight_decay: float = option(1e-4, "Weight decay.", check=check_nonnegative)
    seed: int = seed_field()
    num_workers: int | None = num_workers_field()
    device: str = training_device_field()
    out: str | Path | None = option(
        None,
        "Folder to write `audit.html`, `pairs.csv`, `audit.json` and the training run to; default: nothing is written.",
        lifetime="call",
        group="output",
    )
    drop: bool = option(
        False,
        "Also write the data without the flagged pairs to `out`: `dropped.csv` for a .csv table and so on, the folder "
        "`dropped` for a folder of files with a table of their pairs, else `dropped.npz` (images resized as for the "
        "audit). Training rows that were not audited are left out; a test split is kept by the first two, and of an "
        ".npz. With three or more views: `dropped.npz`, where the flagged views are missing.",
        lifetime="machine",
    )
    repair: bool = option(
        False,
        "Also write the data, of two views, to `out` with the second view of each flagged pair replaced by that of its "
        "better partner: `repaired.csv` and so on. Flagged pairs without one are left out; other rows as with `drop`.",
        lifetime="machine",
    )
    weigh: bool = option(
        False,
        "Also write the data, of two views, to `out` with weight 0 for flagged pairs and training rows without an "
        "audited pair, else 1: `weighed.csv` with the column `audit_weight`, for `contraport train --sample_weight "
        "audit_weight`; `weighed.npz` with the array `weights`, for an .npz; else `weights.npy`.",
        lifetime="machine",
    )
    resume: bool = option(
        False,
        "Continue the audit in `out`, with its data and options; they need not be repeated. A finished audit is not "
        "trained again: its results and the requested data are written.",
        lifetime="call",
    )
    progress: bool = progress_field("Show progress on standard error.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.requested_cleanings:
            first = self.requested_cleanings[0]
            check(self.out is not None, f"{first}: requires out, the folder to write the data to.", "missing_out")
        check(
            self.method != "online" or self.statistic in (None, "combined"),
            f"statistic: an online audit uses 'combined', got {self.statistic!r}; others need the method crossfit.",
            "conflict",
        )
        for name in _UNUSED_OPTION_NAMES_BY_METHOD[self.method]:
            value, default = getattr(self, name), get_declared_options(AuditOptions)[name].default
            check(value == default, f"{name}: has no effect on the method {self.method}, got {value!r}.", "no_effect")

    @property
    def requested_cleanings(self) -> tuple[Cleaning, ...]:
        """Cleanings whose result is written, any of "drop", "repair" and "weigh"."""
        cleanings: tuple[Cleaning, ...] = get_args(Cleaning)
        return tuple(cleaning for cleaning in cleanings if getattr(self, cleaning))


AUDIT_COMMAND_SPEC = Command(
    AuditOptions,
    "contraport.auditing:audit",
    "Find mismatched pairs or, among three or more views, the one that does not belong.",
    details="""
        Each pair gets a score, comparable within one audit; higher is better. The share of wrong pairs is estimated
        from mismatches made on purpose, with a 95% interval. This share of the pairs, those with the lowest scores, is
        flagged. A transport plan matches them with one another: if the second view of another flagged pair fits better,
        it is proposed as a partner. To train an encoder without such pairs, use `contraport train --audit`.

        With three or more views, every two of them are audited, in a folder of their own, and `views.csv` has a score
        for each view of each item: it is low if the item's pairs with this view score low and its other pairs do not.
        Below 0 the view is more probably wrong than right, and flagged.

        `pairs.csv` has a row for each pair, in the order of the data: `id` (number of the audited pair, from 0),
        `score`, `fdr` (the estimated share of good pairs among those that score as low or lower), `flagged`, `partner`
        (`id` of the better partner; -1: none), `partner_score`, `partner_confidence` (the estimated probability that
        the partner is right), `row` (row in the data, from 0; pairs that were not audited count too) and `key`, if the
        data have names (after an apostrophe if a spreadsheet would take it for a formula). `--json` prints `audit.json`
        and the scores and partners of all pairs; its entry `flagged_pairs`, or `flagged_views`, has the worst first.
        `audit.html`, one file, shows the worst pairs with their better partners, to sort, mark and download as a list.
    """,
    examples=(
        "contraport audit --data pairs.npz --out audits/pairs",
        "contraport audit --data views.npz --given_views 0 2 --method crossfit --repeats 2 --out audits/views",
        "contraport audit --data languages.npz --drop --out audits/languages",
        "contraport audit --data table.parquet --given_views photo caption --drop --weigh --out audits/table",
    ),
    printer_path="contraport.cli.result_printers:print_audit",
    next_commands_path="contraport.cli.next_commands:after_audit",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="pairs",
    short_help_options=(
        "data",
        "given_views",
        "columns",
        "method",
        "encoder",
        "epochs",
        "seed",
        "device",
        "out",
        "drop",
        "repair",
        "weigh",
        "resume",
    ),
    docs_page="audit",
)
