"""What `contraport neighbors` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from contraport.options import known, option, whole
from contraport.verbs import EXTRA, USE, Verb
from contraport.verbs._of_features import OfIndexed
from contraport.verbs._of_run import Run, Trusting


@dataclass(frozen=True, kw_only=True)
class NeighborsOptions(OfIndexed, Trusting):
    """What `contraport.neighbors` is asked; see there for each."""

    query: int | str | Path = field(
        metadata=known(
            "what to look for: a position among the features, from 0; a key of theirs, such as a path; or a file, an "
            "image or an array in .npy, or for a run of texts a text, which the run's encoder embeds."
        )
    )
    top: int = option(10, "how many of the nearest.", check=whole(1))
    run: str | Path | Run | None = option(
        None, "the run folder whose encoder embeds a file; default: that which embedded the features."
    )


VERB = Verb(
    NeighborsOptions,
    "contraport.searching:neighbors",
    "Find what is nearest to a photo or a row among embedded items.",
    about="""
        The nearest are those of the largest cosine, found by looking at all, a block at a time; a row is none of its
        own neighbours.
    """,
    examples=(
        "contraport neighbors photos.parquet --query photo.jpg --top 10",
        "contraport neighbors photos.npy --query 17 --page near.html",
        "contraport neighbors sentences.npy --query 'how to return a bag'",
    ),
    show="contraport.cli.console:print_neighbors",
    extra=EXTRA,
    group=USE,
    page="searching",
)
