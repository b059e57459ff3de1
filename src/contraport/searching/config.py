"""Options of the commands that look at features: search, neighbors, duplicates and cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contraport.command import EXTRA, PAIRS, USE_ENCODER, Command
from contraport.errors import check
from contraport.options import Options, int_in_range, matches_type, one_of, option, option_metadata
from contraport.runs.config import Run, TrustOptions


@dataclass(frozen=True, kw_only=True)
class FeatureOptions(Options):
    """Options of a command that looks at features."""

    features: str | Path | Any = field(
        kw_only=False,
        metadata=option_metadata(
            "a file that `contraport embed` wrote, .npz, .npy or .parquet; or from Python an array (n, F)."
        ),
    )
    device: str = option("auto", "auto, cpu, cuda or another of torch's devices.")
    page: str | Path | None = option(
        None, "an .html file to write that shows what is found, with pictures where the items have some; default: none."
    )
    overwrite: bool = option(False, "replace the files to write where they exist.")


@dataclass(frozen=True, kw_only=True)
class IndexedOptions(FeatureOptions):
    """Options of a command that compares features with all others."""

    index: str | Path | None = option(
        None,
        "an index of the features in a file, by faiss, made where there is none or one of others: more than a million "
        "rows are looked at in parts, so that a few of the nearest may be missed; default: all are looked at.",
    )


@dataclass(frozen=True, kw_only=True)
class SearchOptions(IndexedOptions, TrustOptions):
    """Options of `contraport.search`; see there for each."""

    features: str | Path | Run = field(
        kw_only=False,
        metadata=option_metadata(
            "where to look: a file that `contraport embed --view` wrote; or the folder of a run, whose own items are "
            "then embedded for this search."
        ),
    )
    query: str | Path = field(
        kw_only=False,
        metadata=option_metadata("what to look for: a text; or a file, an image or an array in .npy."),
    )
    top: int = option(10, "how many of the nearest.", check=int_in_range(1))
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


SEARCH = Command(
    SearchOptions,
    "contraport.searching:search",
    "Find items of one kind by another: images by a text, say.",
    details="""
        A run of several views, such as images and captions, puts all of them into one space. The query goes through the
        encoder of its own view, and the items of another view that are nearest to it, by the cosine, are found.
    """,
    examples=(
        'contraport search runs/captioned "a red bag"',
        'contraport search images.npz "a red bag" --top 20 --page bags.html',
        "contraport search captions.npz photo.jpg",
    ),
    printer="contraport.cli.console:print_neighbors",
    extra=EXTRA,
    group=USE_ENCODER,
    page="searching",
)


@dataclass(frozen=True, kw_only=True)
class NeighborsOptions(IndexedOptions, TrustOptions):
    """Options of `contraport.neighbors`; see there for each."""

    query: int | str | Path = field(
        metadata=option_metadata(
            "what to look for: a position among the features, from 0; a key of theirs, such as a path; or a file, an "
            "image or an array in .npy, or for a run of texts a text, which the run's encoder embeds."
        )
    )
    top: int = option(10, "how many of the nearest.", check=int_in_range(1))
    run: str | Path | Run | None = option(
        None, "the run folder whose encoder embeds a file; default: that which embedded the features."
    )


NEIGHBORS = Command(
    NeighborsOptions,
    "contraport.searching:neighbors",
    "Find what is nearest to a photo or a row among embedded items.",
    details="""
        The nearest are those of the largest cosine, found by looking at all, a block at a time; a row is none of its
        own neighbours.
    """,
    examples=(
        "contraport neighbors photos.parquet --query photo.jpg --top 10",
        "contraport neighbors photos.npy --query 17 --page near.html",
        "contraport neighbors sentences.npy --query 'how to return a bag'",
    ),
    printer="contraport.cli.console:print_neighbors",
    extra=EXTRA,
    group=USE_ENCODER,
    page="searching",
)


def _cosine(name: str, value: Any) -> None:
    good = matches_type(value, float) and -1 <= value <= 1
    check(good, f"{name}: expected a cosine, a number from -1 to 1, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class DuplicatesOptions(IndexedOptions):
    """Options of `contraport.duplicates`; see there for each."""

    threshold: float = option(
        0.999,
        "from which cosine on two items are taken for the same; features that are the same have 1.",
        check=_cosine,
    )


DUPLICATES = Command(
    DuplicatesOptions,
    "contraport.searching:duplicates",
    "Find groups of embedded items that are all but the same.",
    details="""
        Two items are linked where the cosine of their features is at least `threshold`, and a group is what links join.
        How alike different items are depends on the encoder: pairs just below the threshold are counted, and a gap in
        the cosines is proposed as the threshold.
    """,
    examples=(
        "contraport duplicates photos.parquet",
        "contraport duplicates photos.npy --threshold 0.98 --page same.html",
    ),
    printer="contraport.cli.console:print_groups",
    extra=EXTRA,
    group=PAIRS,
    page="searching",
)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(FeatureOptions):
    """Options of `contraport.cluster`; see there for each."""

    k: int = field(metadata=option_metadata("how many clusters.", check=int_in_range(1)))
    out: str | Path | None = option(None, "a .csv file to write the cluster of each item to; default: none.")


CLUSTER = Command(
    ClusterOptions,
    "contraport.searching:cluster",
    "Find clusters of embedded items, and what is typical of each.",
    details="""
        k-means of features on the unit sphere; the largest cluster is number 0. What is printed of each is how many
        items it has, which are nearest to its centre, and where the items have classes the largest of them. In the
        .csv file a name that a spreadsheet would take for a formula, as it begins with =, +, - or @, has an apostrophe
        before it.
    """,
    examples=(
        "contraport cluster photos.parquet --k 20",
        "contraport cluster photos.npy --k 50 --out clusters.csv --page clusters.html",
    ),
    printer="contraport.cli.console:print_clusters",
    extra=EXTRA,
    group=USE_ENCODER,
    page="searching",
)
