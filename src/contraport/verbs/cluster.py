"""What `contraport cluster` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from contraport.options import known, option, whole
from contraport.verbs import EXTRA, USE, Verb
from contraport.verbs._of_features import OfFeatures


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(OfFeatures):
    """What `contraport.cluster` is asked; see there for each."""

    k: int = field(metadata=known("how many clusters.", check=whole(1)))
    out: str | Path | None = option(None, "a .csv file to write the cluster of each item to; default: none.")


VERB = Verb(
    ClusterOptions,
    "contraport.searching:cluster",
    "Find clusters of embedded items, and what is typical of each.",
    about="""
        k-means of features on the unit sphere; the largest cluster is number 0. What is printed of each is how many
        items it has, which are nearest to its centre, and where the items have classes the largest of them. In the
        .csv file a name that a spreadsheet would take for a formula, as it begins with =, +, - or @, has an apostrophe
        before it.
    """,
    examples=(
        "contraport cluster photos.parquet --k 20",
        "contraport cluster photos.npy --k 50 --out clusters.csv --page clusters.html",
    ),
    show="contraport.cli.console:print_clusters",
    extra=EXTRA,
    group=USE,
    page="searching",
)
