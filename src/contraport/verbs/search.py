"""What `contraport search` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from contraport.options import known, one_of, option, whole
from contraport.verbs import EXTRA, USE, Verb
from contraport.verbs._of_features import OfIndexed
from contraport.verbs._of_run import Run, Trusting


@dataclass(frozen=True, kw_only=True)
class SearchOptions(OfIndexed, Trusting):
    """What `contraport.search` is asked; see there for each."""

    features: str | Path | Run = field(
        kw_only=False,
        metadata=known(
            "where to look: a file that `contraport embed --view` wrote; or the folder of a run, whose own items are "
            "then embedded for this search."
        ),
    )
    query: str | Path = field(
        kw_only=False,
        metadata=known("what to look for: a text; or a file, an image or an array in .npy."),
    )
    top: int = option(10, "how many of the nearest.", check=whole(1))
    query_view: str | int | None = option(
        None, "which of the run's views the query is, by name, number or kind; default: the one of its kind."
    )
    view: str | int | None = option(
        None, "of a run, in which of its views to look; default: the first other than the query's."
    )
    split: Literal["train", "test", "all"] = option(
        "test", "of a run, which of its own items to look at: train, test or all.", check=one_of("train", "test", "all")
    )
    run: str | Path | Run | None = option(
        None, "the run folder whose encoders embed the query; default: that which embedded the features."
    )


VERB = Verb(
    SearchOptions,
    "contraport.searching:search",
    "Find items of one kind by another: images by a text, say.",
    about="""
        A run of several views, such as images and captions, puts all of them into one space. The query goes through the
        encoder of its own view, and the items of another view that are nearest to it, by the cosine, are found.
    """,
    examples=(
        'contraport search runs/captioned "a red bag"',
        'contraport search images.npz "a red bag" --top 20 --page bags.html',
        "contraport search captions.npz photo.jpg",
    ),
    show="contraport.cli.console:print_neighbors",
    extra=EXTRA,
    group=USE,
    page="searching",
)
