"""Options of `contraport advise`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraport.options import EXTRA, GETTING_STARTED, BaseOptions, Command, int_in_range, option, option_metadata


@dataclass(frozen=True, kw_only=True)
class AdviseOptions(BaseOptions):
    """Options of `contraport.advise`: the data, and facts that only the user knows, such as wrong pairs."""

    data: str | Path | Any = field(
        kw_only=False,
        metadata=option_metadata("Training data, as in `contraport train`: a name, a folder, a file or a URL."),
    )
    wrong_pairs: bool = option(False, "Some pairs may not belong together, such as captions of other images.")
    use_labels: bool = option(False, "Train on the labels of the data; otherwise they are for evaluation only.")
    dimensions: int | None = option(
        None, "Number of dimensions of the embeddings, if few are needed, such as 2 for a map.", check=int_in_range(1)
    )
    columns: dict[str, Any] | None = option(None, "Roles of table columns, as in `contraport train`.")
    image_size: int | None = option(
        None, "Side length in pixels to which images are resized, as in `contraport train`.", check=int_in_range(1)
    )


ADVISE = Command(
    AdviseOptions,
    "contraport.training.advise:advise",
    "Recommend a training command for given data.",
    details="""
        Reads the training split and looks at the number and kind of its views, its labels, domains and number of
        items. Prints the command to start from, the reason for each of its options, and options to compare it with.
        The reasons refer to the measured suites; `contraport docs evidence` has their intervals.
    """,
    examples=(
        "contraport advise digits",
        "contraport advise pairs.parquet --wrong_pairs",
        "contraport advise people.csv --use_labels",
    ),
    printer_path="contraport.training.advise:print_advice",
    required_extra=EXTRA,
    group=GETTING_STARTED,
    docs_page="choosing",
)
