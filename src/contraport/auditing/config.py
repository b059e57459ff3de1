"""Options of `contraport audit`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraport.command import EXTRA, PAIRS, Command
from contraport.errors import check, check_nonnegative, check_positive
from contraport.options import Options, int_in_range, matches_type, one_of, option, option_metadata


def _two_views(name: str, value: Any) -> None:
    good = matches_type(value, Sequence[int | str]) and len(value) in (0, 2) and len(set(map(str, value))) == len(value)
    good = good and all(isinstance(view, str) or view >= 0 for view in value)
    check(good, f"{name}: expected two different names or numbers from 0 on, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Options):
    """Options of `contraport.audit`; see there for each.

    Raises:
        UsageError: a value that is wrong, or values that do not go together.
    """

    data: str | Path | Any | None = field(
        default=None,
        kw_only=False,
        metadata=option_metadata(
            "whose pairs are judged: as in `contraport train`; in Python a Dataset or two arrays too. Where the data "
            "have a test split of their own it is not judged.",
            group="the pairs",
            cli_flag=True,
        ),
    )
    views: Sequence[int | str] = option(
        (),
        "the two views, where the data have more, by their names (the columns of a table, `view0` of an .npz) or their "
        "numbers from 0.",
        check=_two_views,
    )
    columns: dict[str, Any] | None = option(
        None, "what the columns of a table are for, as in `contraport train`; default: by their names and types."
    )
    image_size: int | None = option(None, "side in pixels of the square that images become.", check=int_in_range(1))
    root: str | Path | None = option(None, "folder of named data.", scope="machine")
    method: str = option(
        "online",
        "online: one training that looks at its pairs eight times as it goes; crossfit: encoders that judge pairs "
        "that they have not seen; frozen: the views are vectors that an encoder gave, and nothing is trained.",
        check=one_of("online", "crossfit", "frozen"),
        group="how they are judged",
    )
    statistic: str | None = option(
        None,
        "what a cross-fit or frozen vectors are judged by: combined, neighbors, canonical, likeness, or where both "
        "views are in one space cosine, softmax, csls, rank, balanced or unbalanced; default: combined, which is "
        "what an online audit goes by.",
        check=one_of(
            "combined",
            "neighbors",
            "canonical",
            "likeness",
            "cosine",
            "softmax",
            "csls",
            "rank",
            "balanced",
            "unbalanced",
        ),
    )
    folds: int = option(
        5, "parts of a cross-fit: each is judged by an encoder trained on the others.", check=int_in_range(2)
    )
    repeats: int = option(1, "how often a cross-fit deals the parts anew; scores are averaged.", check=int_in_range(1))
    rounds: int = option(
        2,
        "how often it judges: what seems wrong is left out of the training of the next round; of a cross-fit the "
        "scores are averaged over the rounds.",
        check=int_in_range(1),
    )
    encoder: Sequence[str] | str | None = option(
        None, "as in `contraport train`; default: by the kind of each view.", group="training"
    )
    objective: str = option("info-nce", "a name (see `contraport list objectives`).")
    temperature: float = option(0.2, "of the objective.", check=check_positive)
    projection: int = option(0, "features of the projection that the objective sees; 0: none.", check=int_in_range(0))
    epochs: int = option(36, "passes over the data of a training.", check=int_in_range(1))
    batch_size: int = option(256, "items in a batch; a quarter of them all at most.", check=int_in_range(2))
    lr: float | None = option(None, "peak learning rate, as in `contraport train`.", check=check_positive)
    weight_decay: float = option(1e-4, "decay of weights.", check=check_nonnegative)
    seed: int = option(0, "what all that is random depends on.", check=int_in_range(0, most=2**64 - 1))
    workers: int | None = option(
        None,
        "processes that fetch data; default: none for data in memory, else one per core but one.",
        check=int_in_range(0),
        scope="machine",
    )
    device: str = option("auto", "auto, cpu, cuda or mps.", check=one_of("auto", "cpu", "cuda", "mps"), scope="machine")
    out: str | Path | None = option(
        None,
        "the folder for `audit.html`, a page, `pairs.csv`, `audit.json` and the training; default: nothing is written.",
        scope="call",
        group="the folder",
    )
    drop: bool = option(
        False,
        "write the data without the pairs that are flagged too: `dropped.csv` of a table of that kind, else "
        "`dropped.npz`.",
        scope="call",
    )
    repair: bool = option(
        False,
        "write them with the second view of the better partner in each flagged pair, and without those that have none: "
        "`repaired.csv` and so on.",
        scope="call",
    )
    weigh: bool = option(
        False,
        "write them with weights, 0 of the flagged pairs and 1 of others: `weighed.csv` with a column for `contraport "
        "train --weights audit_weight`, `weighed.npz` with the array `weights`, or of other data `weights.npy` alone.",
        scope="call",
    )
    resume: bool = option(False, "go on with an audit that was stopped.", scope="call")
    progress: bool = option(True, "show progress on the standard error.", scope="call")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.out is not None or not self.cleaned,
            f"{next(iter(self.cleaned), '')}: writes data into `out`; expected a folder.",
        )
        goes_on = self.method != "frozen" and self.out is not None
        check(not self.resume or goes_on, "resume: goes on with the trainings of an audit in `out`; expected both.")
        check(
            self.method != "online" or self.statistic in (None, "combined"),
            f"statistic: a training judges by 'combined', got {self.statistic!r}; method='crossfit' takes it.",
        )

    @property
    def cleaned(self) -> tuple[str, ...]:
        """In which ways the data are written without what seems wrong."""
        return tuple(way for way in ("drop", "repair", "weigh") if getattr(self, way))

    @property
    def statistic_name(self) -> str:
        """The statistic."""
        return self.statistic or "combined"


AUDIT = Command(
    AuditOptions,
    "contraport.auditing:audit",
    "Find the pairs of data of two views that do not belong together.",
    details="""
        Each pair gets a score, the more the better; how many pairs are wrong is estimated, with an
        interval, from pairs that are known to be wrong; and for each pair the partner is looked for that would suit the
        first view more. `contraport train --audit` trains on the pairs that seem right in the same pass.

        `pairs.csv` has a row for each pair, in the order of the data: `id`, `score`, `fdr` (of all pairs that score as
        low, the estimated share that is right), `flagged`, `partner` (the `id` of the item whose second view would suit
        better; -1: none), `partner_score`, `row` (its number in the data, from 0, what was not judged counted) and
        `key`, where the data have names; a key that a spreadsheet would take for a formula, as it begins with =, +, -
        or @, has an apostrophe before it.
        `audit.html` shows the worst of them side by side, each with the better partner: a page in one file, on which
        they can be sorted, marked and downloaded as a list.
    """,
    examples=(
        "contraport audit --data pairs.npz --out audits/pairs",
        "contraport audit --data views.npz --views 0 2 --method crossfit --repeats 2 --out audits/views",
        "contraport audit --data table.parquet --views photo caption --drop --weigh --out audits/table",
    ),
    printer="contraport.cli.console:print_audit",
    extra=EXTRA,
    group=PAIRS,
    common_options=(
        "data",
        "views",
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
    page="audit",
)
