"""Options of `contraport map` and `inverse-ot`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from contraport.errors import check_nonnegative, check_positive
from contraport.options import (
    TRAIN_AND_REPORT_EXTRAS,
    BaseOptions,
    Command,
    int_in_range,
    one_of,
    option,
    option_metadata,
)
from contraport.runs.shared_options import VIEW_HELP, Run, TrustOptions, device_field, progress_field, seed_field


@dataclass(frozen=True, kw_only=True)
class MapOptions(TrustOptions):
    """Options of `contraport.map`, which embeds items in the plane."""

    source: str | Path | Run | Any = field(
        kw_only=False,
        metadata=option_metadata(
            "Run folder, whose items are embedded; or a feature file written by `contraport embed` (.npz, .npy or "
            ".parquet); or data as in `contraport train`, mapped by their raw inputs. In Python also an array (n, F)."
        ),
    )
    out: str | Path | None = option(
        None, "New folder for the coordinates, the picture and the page; default: nothing is written."
    )
    method: Literal["tsne", "sne"] = option(
        "tsne", "Method: tsne (heavy-tailed kernel) or sne (Gaussian kernel).", check=one_of("tsne", "sne")
    )
    perplexity: float = option(30.0, "Effective number of neighbors of an item.", check=check_positive)
    exact: bool = option(
        False,
        "Use all pairs of items, in O(n^2) memory and time. Default: the 3 x perplexity nearest neighbors of each item "
        "attract it, and the repulsion of t-SNE is interpolated on a grid, in O(n) time.",
    )
    iterations: int = option(1000, "Largest number of iterations.", check=int_in_range(1))
    max_items: int = option(10_000, "Map at most this many items, chosen at random.", check=int_in_range(4))
    split: Literal["train", "test"] | None = option(
        None,
        "Split of a run or of data: train or test; default: test for a run, all items for data without a test split.",
        check=one_of("train", "test"),
    )
    view: str | int | None = option(None, VIEW_HELP)
    columns: dict[str, Any] | None = option(
        None, "Roles of table columns, as in `contraport train`; default: those of the run, or inferred from data."
    )
    seed: int = seed_field()
    device: str = device_field()
    progress: bool = progress_field()


MAP_COMMAND_SPEC = Command(
    MapOptions,
    "contraport.estimators:map",
    "Draw a map of items in the plane by t-SNE.",
    details="""
        Near points are similar items; the axes and the distances between distant groups have no meaning. The map is
        judged by its trustworthiness: 1 if the 12 nearest neighbors on the map are neighbors in the data.

        The folder `out` has `map.csv` (position, row, name, class, x and y of each item), `map.npz` (the same as a
        feature file, for `contraport cluster` or `contraport.plots.embedding`), `map.png` and `map.html`, a page of at
        most 2,000 of the items, in which each point shows its item and its nearest neighbors.
    """,
    examples=(
        "contraport map runs/photos --out maps/photos",
        "contraport map photos.npz --perplexity 50 --out maps/vectors",
        "contraport map digits --split test --exact --out maps/digits",
    ),
    printer_path="contraport.cli.result_printers:print_map",
    next_commands_path="contraport.cli.next_commands:after_map",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="use a trained encoder",
    docs_page="similarity-search maps",
)


@dataclass(frozen=True, kw_only=True)
class InverseOTOptions(BaseOptions):
    """Options of `contraport.inverse_ot`, which learns the cost of a coupling."""

    coupling: str | Path | Any = field(
        kw_only=False,
        metadata=option_metadata(
            "Observed coupling: a folder with the tables rows, columns and pairs (see `contraport docs couplings`), or "
            "a matrix of nonnegative numbers in a .npy file, or in a .csv file without a heading; in Python also an "
            "array (n, m)."
        ),
    )
    row_features: str | Path | Any | None = option(
        None,
        "Features of the rows: a feature file, whose items are sorted by their row in the data, or in Python an array "
        "(n, p) in the order of the coupling; default: those in the folder; for a matrix, one indicator per row.",
        deprecated_name="rows",
    )
    column_features: str | Path | Any | None = option(
        None, "Features of the columns, in the same form.", deprecated_name="columns"
    )
    components: int = option(
        16, "Number of principal components kept of the features of each side.", check=int_in_range(1)
    )
    ridge: float = option(
        0.0,
        "Factor of half the squared norm of the affinity matrix. A coupling with many zeros needs it, as its cost "
        "grows without bound otherwise.",
        check=check_nonnegative,
    )
    iterations: int = option(1000, "Largest number of L-BFGS iterations.", check=int_in_range(1))
    out: str | Path | None = option(
        None, "New folder for the cost, the plan and a picture; default: nothing is written."
    )


INVERSE_OT_COMMAND_SPEC = Command(
    InverseOTOptions,
    "contraport.estimators:inverse_ot",
    "Learn a cost that explains observed pairs of two sets (inverse optimal transport).",
    details="""
        Inverse optimal transport: learns the cost C_ij = -<x_i, A y_j> of features x, y whose entropic transport plan,
        with the masses of the observed coupling, is nearest to the coupling in KL divergence. The temperature of the
        plan is 1. Features have unit variance, so that the singular values of the affinity matrix A show how much each
        pair of directions contributes.

        The KL divergence is compared with that of independent matching, whose plan is the product of the masses: the
        explained share is 0 for a cost that explains nothing and 1 for the observed coupling itself.

        The folder `out` has `inverse_ot.npz` (the arrays `cost` and `plan` `(n, m)`, `affinity` `(p, q)`,
        `row_features` `(n, p)` and `column_features` `(m, q)` as they were used, `row_positions` and
        `column_positions`) and `plans.png`, both plans with rows and columns in the order of the strongest direction.
    """,
    examples=(
        "contraport inverse-ot shop/ --ridge 0.001 --out learned/shop",
        "contraport inverse-ot counts.csv --row_features users.npz --column_features items.npz --out learned/counts",
    ),
    printer_path="contraport.cli.result_printers:print_learned_cost",
    required_extra=TRAIN_AND_REPORT_EXTRAS,
    group="pairs",
    docs_page="couplings",
)
