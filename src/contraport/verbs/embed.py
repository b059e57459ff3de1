"""What `contraport embed` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contraport.options import known, one_of, option, whole
from contraport.verbs import EXTRA, USE, Verb
from contraport.verbs._of_run import VIEW, OfRun


@dataclass(frozen=True, kw_only=True)
class EmbedOptions(OfRun):
    """What `contraport.embed` is asked; see there for each."""

    data: str | Path | Any | None = option(
        None,
        "what to embed: as in `contraport train`; default: the run's own, of which as many as its `items` and "
        "`test_items` took.",
    )
    out: str | Path = field(metadata=known("the file to write, .npz, .npy or .parquet."))
    split: Literal["train", "test", "all"] = option(
        "all",
        "train, test, or all: both, one after the other; a Dataset is one split, and all of it is embedded.",
        check=one_of("train", "test", "all"),
    )
    shard_items: int | None = option(
        None, "write files of so many items each, NAME.00000-of-00004.npz and so on; default: one file.", check=whole(1)
    )
    view: str | int | None = option(None, VIEW)
    overwrite: bool = option(False, "replace `out` where it exists.")


VERB = Verb(
    EmbedOptions,
    "contraport.evaluation:embed",
    "Write the features of some data to a file.",
    about="""
        An `.npz` file has the arrays `features` `(n, F)` float32, `rows` `(n,)` (the number of each item in its source,
        what was left out counted) and `splits` `(n,)`; where the items have names, such as paths, `keys` `(n,)`; and
        where there are labels `labels` `(n,)` and `class_names`. A `.parquet` file has the columns `f0`, `f1` and so
        on, `row`, `split`, `key`, `label` and `class_name`. An `.npy` file has the features alone, and
        `NAME.items.parquet` beside it the other columns. `run` is the folder of the run. Features are written as they
        come, so that memory holds some items at a time, and what each is of all.

        Of a run of several views `view` embeds one of them, and the data may have that one alone, as a folder of images
        has for a run of images and captions. The file says which view it is of, and `contraport search` finds its items
        by another.

        Under `torchrun` each process embeds its share of the items and writes it beside `out`, as
        `NAME.00000-of-00002.npz` and so on; the shards in the order of their numbers are the items in their order.
    """,
    examples=(
        "contraport embed runs/photos --data photos/ --out photos.parquet",
        "contraport embed runs/captioned --view image --data photos/ --out photos.npz",
        "torchrun --nproc_per_node 4 -m contraport embed runs/photos --out photos.parquet",
    ),
    show="builtins:print",
    extra=EXTRA,
    group=USE,
    page="searching",
)
