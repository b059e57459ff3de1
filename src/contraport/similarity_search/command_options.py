"""Options of `contraport search`, `neighbors`, `duplicates`, `cluster` and `mine`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from contraport._utils.formatting import join_names
from contraport.catalog.data_option_parsers import MINING_SAMPLINGS, MiningRule
from contraport.errors import check, check_finite, is_number
from contraport.options import (
    TRAIN_AND_REPORT_EXTRAS,
    BaseOptions,
    Command,
    int_in_range,
    one_of,
    option,
    option_metadata,
)
from contraport.runs.shared_options import Run, TrustOptions, device_field, progress_field, seed_field


@dataclass(frozen=True, kw_only=True)
class SavedFeaturesOptions(BaseOptions):
    """Options shared by all commands that read embedded features."""

    features: str | Path | Any = field(
        kw_only=False,
        metadata=option_metadata(
            "Feature file written by `contraport embed` (.npz, .npy or .parquet); in Python also an array (n, F)."
        ),
    )
    device: str = device_field()
    page: str | Path | None = option(
        None, "Write the result to this .html file, with pictures of the items where there are any; default: no page."
    )
    overwrite: bool = option(False, "Replace existing output files.")


@dataclass(frozen=True, kw_only=True)
class FeatureSearchOptions(SavedFeaturesOptions):
    """Options shared by the commands that search features."""

    index: str | Path | None = option(
        None,
        "File of a faiss index of the features: faster above a million rows, but it may miss some of the nearest "
        "items. It is built if it is missing or was built from other features; default: exact search of all rows.",
    )


@dataclass(frozen=True, kw_only=True)
class NearestItemsOptions(FeatureSearchOptions, TrustOptions):
    """Options shared by the commands that list the items nearest to a query."""

    top: int = option(10, "Number of nearest items.", check=int_in_range(1))
    run: str | Path | Run | None = option(
        None, "Run folder whose encoder embeds the query; default: the run that embedded the features."
    )


@dataclass(frozen=True, kw_only=True)
class ItemSearchOptions(NearestItemsOptions):
    """Options of `contraport.search`, search across views, such as images by text."""

    features: str | Path | Run = field(
        kw_only=False,
        metadata=option_metadata(
            "Items to search: a file written by `contraport embed --view`, or a run folder, whose own items are then "
            "embedded."
        ),
    )
    query: str | Path = field(
        kw_only=False, metadata=option_metadata("Query: a text, or a file with an image or a .npy array.")
    )
    query_view: str | int | None = option(
        None, "View of the query, by name, number or kind; default: the view of the query's kind."
    )
    view: str | int | None = option(
        None, "View to search, if `features` is a run; default: the first view other than the query's."
    )
    split: Literal["train", "test", "all"] = option(
        "test", "Split to search, if `features` is a run: train, test or all.", check=one_of("train", "test", "all")
    )
    popularity: float = option(
        0.0,
        "For a run on a coupling of two sets: add this multiple of log(1 + number of training pairs) of an item to its "
        "similarity, such as 0.1.",
        check=check_finite,
    )


@dataclass(frozen=True, kw_only=True)
class NeighborSearchOptions(NearestItemsOptions):
    """Options of `contraport.neighbors`, search of items nearest to an item, file or text."""

    query: int | str | Path = field(
        metadata=option_metadata(
            "Position of an item in the feature file, from 0; its key, such as a path; a file to embed, an image or an "
            "array in .npy; or, for a run of texts, a text to embed. The position is not the row in the data, as "
            "training items come first and items may be left out; the output shows both."
        )
    )


def _check_cosine(name: str, value: Any) -> None:
    """Raise `UsageError` unless an option is a number from -1 to 1."""
    check(is_number(value) and -1 <= value <= 1, f"{name}: must be a cosine, from -1 to 1, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class DuplicateSearchOptions(FeatureSearchOptions):
    """Options of `contraport.duplicates`, which finds groups of nearly equal items."""

    threshold: float = option(
        0.999, "Least cosine similarity of duplicates; equal features have 1.", check=_check_cosine
    )
    out: str | Path | None = option(
        None, "Write all items of all groups to this .csv file, with the number of their group; default: no file."
    )


@dataclass(frozen=True, kw_only=True)
class ItemClusteringOptions(SavedFeaturesOptions):
    """Options of `contraport.cluster`, which groups items by k-means."""

    k: int = field(metadata=option_metadata("Number of clusters.", check=int_in_range(1)))
    out: str | Path | None = option(None, "Write the cluster of each item to this .csv file; default: no file.")


@dataclass(frozen=True, kw_only=True)
class MiningOptions(TrustOptions):
    """Options of `contraport.mine`, which mines hard negatives for paired items."""

    encoder: str | Path | Run = field(
        kw_only=False,
        metadata=option_metadata(
            "Encoder that finds the negatives: a run folder; a model folder of timm, of transformers or of `contraport "
            "export`; or a file of features, written by `contraport embed` and matched by the row of each item in the "
            "data, or another .npy of shape (items, k) or (items, views, k), in the order of the data."
        ),
    )
    data: str | Path | Any | None = option(
        None, "Pairs, as in `contraport train`; default: the training items of the run."
    )
    columns: dict[str, Any] | None = option(None, "Roles of table columns, as in `contraport train`.")
    root: str | Path | None = option(None, "Folder with the files of named data (see `contraport list data`).")
    anchor: str | int | None = option(None, "View whose items get the negatives; default: the first.")
    positive: str | int | None = option(
        None, "View of the negatives; default: the first view other than the anchor, or the only one."
    )
    k: int = option(5, "Number of negatives of a pair.", check=int_in_range(1), group="which negatives")
    range_min: int = option(0, "Number of most similar negatives to skip.", check=int_in_range(0))
    range_max: int | None = option(
        None,
        "Number of most similar candidates to choose from; default: range_min + k, or range_min + 10 k with a margin "
        "or max_score, plus the number of positives.",
        check=int_in_range(1),
    )
    relative_margin: float | None = option(
        None,
        "Exclude negatives whose cosine similarity is above (1 - margin) times that of the pair (if that is positive): "
        "0.05 is a good start; default: none.",
    )
    absolute_margin: float | None = option(
        None, "Exclude negatives whose cosine similarity is above that of the pair minus this margin; default: none."
    )
    max_score: float | None = option(None, "Exclude negatives with a higher cosine similarity; default: none.")
    min_score: float | None = option(None, "Exclude negatives with a lower cosine similarity; default: none.")
    sampling: Literal["top", "random"] = option(
        "top",
        "Which of the considered negatives to take: the most similar (top) or a random choice (random).",
        check=one_of(*MINING_SAMPLINGS),
    )
    audit: str | Path | None = option(
        None,
        "Folder of a `contraport audit` of the same pairs: flagged pairs get no negatives, and their better partners "
        "are not used as their negatives.",
    )
    seed: int = seed_field()
    out: str | Path = field(
        metadata=option_metadata(
            "Output file: .csv, .jsonl or .parquet for other trainers, or .npy for `contraport train --negatives "
            "mined:FILE`.",
            group="output",
        )
    )
    layout: Literal["triplet", "n-tuple"] = option(
        "triplet",
        "Rows of a table: triplet, one for each negative; or n-tuple, one for each pair with k negatives.",
        check=one_of("triplet", "n-tuple"),
    )
    device: str = device_field()
    overwrite: bool = option(False, "Replace `out` if it exists.")
    progress: bool = progress_field()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rule.check_values()
        suffixes = (".csv", ".jsonl", ".parquet", ".npy")
        out = Path(self.out)
        check(out.suffix in suffixes, f"out: must end in {join_names(suffixes, 'or')}, got {out.name!r}.", "suffix")

    @property
    def rule(self) -> MiningRule:
        """Rule that selects the negatives."""
        return MiningRule(**{name: getattr(self, name) for name in MiningRule._fields})


_command = partial(Command, required_extra=TRAIN_AND_REPORT_EXTRAS, docs_page="similarity-search")  # of this package

SEARCH_COMMAND_SPEC = _command(
    ItemSearchOptions,
    "contraport.similarity_search:search",
    "Find items by an item of another kind, such as images by a text.",
    details="""
        A run of several views, such as images and captions, maps them into one space. The encoder of its own view
        embeds the query, and the items of another view with the largest cosine similarity are listed. If `features` is
        a run with a late-interaction kernel, this kernel compares the query with each of its items.
    """,
    examples=(
        'contraport search runs/captioned "a red bag"',
        'contraport search images.npz "a red bag" --top 20 --page bags.html',
        "contraport search captions.npz photo.jpg",
    ),
    printer_path="contraport.cli.result_printers:print_neighbors",
    group="use a trained encoder",
)

NEIGHBORS_COMMAND_SPEC = _command(
    NeighborSearchOptions,
    "contraport.similarity_search:neighbors",
    "Find the embedded items that are nearest to an item or a file.",
    details="""
        The search by cosine similarity is exact, unless `index` is given. An item is not its own neighbor. Items
        are compared by one vector each; for a run with a late-interaction kernel, `contraport search` compares them by
        all their vectors.
    """,
    examples=(
        "contraport neighbors photos.parquet --query photo.jpg --top 10",
        "contraport neighbors photos.npy --query 17 --page near.html",
        "contraport neighbors sentences.npy --query 'how to return a bag'",
    ),
    printer_path="contraport.cli.result_printers:print_neighbors",
    group="use a trained encoder",
)

DUPLICATES_COMMAND_SPEC = _command(
    DuplicateSearchOptions,
    "contraport.similarity_search:duplicates",
    "Find groups of embedded items that are nearly equal.",
    details="""
        Two items are linked if their cosine similarity is at least `threshold`; a group is a set of items connected by
        links. How similar different items are depends on the encoder, so the number of pairs just below the threshold
        is shown, and if the similarities have a gap, a threshold in it is proposed. The terminal shows the first items
        of the largest groups; `--out` writes all, each by its position in FEATURES, its row in the data and its name
        (key, path or beginning of its text). In this file a name that a spreadsheet would take for a formula (it begins
        with =, +, - or @) has an apostrophe before it.
    """,
    examples=(
        "contraport duplicates photos.parquet",
        "contraport duplicates photos.npy --threshold 0.98 --out same.csv --page same.html",
    ),
    printer_path="contraport.cli.result_printers:print_duplicate_groups",
    group="pairs",
)

CLUSTER_COMMAND_SPEC = _command(
    ItemClusteringOptions,
    "contraport.similarity_search:cluster",
    "Cluster embedded items, and show what is typical of each cluster.",
    details="""
        Clusters the items by k-means on their features, normalized to unit length; cluster 0 is the largest. Prints the
        number of items of each cluster, the items nearest to its center and, if there are classes, the most frequent
        class. In the .csv file a name that a spreadsheet would take for a formula (it begins with =, +, - or @) has an
        apostrophe before it.
    """,
    examples=(
        "contraport cluster photos.parquet --k 20",
        "contraport cluster photos.npy --k 50 --out clusters.csv --page clusters.html",
    ),
    printer_path="contraport.cli.result_printers:print_clusters",
    group="use a trained encoder",
)

MINE_COMMAND_SPEC = _command(
    MiningOptions,
    "contraport.similarity_search.mine:mine",
    "Mine hard negatives for pairs, for contraport or for other trainers.",
    details="""
        The negatives of a pair are the second views of other items that are most similar to its first view by cosine
        similarity. Items that share content with the pair are never taken as its negatives, nor are the other partners
        of a first view that occurs several times. Some of the remaining items may still match the first view: a margin
        below the similarity of the pair, or skipping the most similar ones (range_min), excludes most of them.

        A table has the columns of both views and `negative`, or `negative_1` and so on: texts as they are, other items
        by name or row. sentence-transformers can train on this table, and its `mine_hard_negatives` finds the same
        negatives with the same settings. A table has all pairs, except those of a separate test split. An `.npy` has
        the positions of the negatives among the training items of `contraport train`, int64 `(items, k)`, -1 for none.
    """,
    examples=(
        "contraport mine runs/questions --k 4 --relative_margin 0.05 --out triplets.parquet",
        "contraport mine models/minilm --data pairs.csv --range_min 10 --range_max 50 --out triplets.csv",
        "contraport mine teacher.npy --data pairs.npz --audit audits/pairs --out negatives.npy",
    ),
    printer_path="builtins:print",
    next_commands_path="contraport.cli.next_commands:after_mine",
    group="pairs",
    docs_page="hard-negatives",
)
