"""What `contraport duplicates` is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from contraport.errors import check
from contraport.options import fits, option
from contraport.verbs import EXTRA, USE, Verb
from contraport.verbs._of_features import OfIndexed


def _cosine(name: str, value: Any) -> None:
    good = fits(value, float) and -1 <= value <= 1
    check(good, f"{name}: expected a cosine, a number from -1 to 1, got {value!r}.")


@dataclass(frozen=True, kw_only=True)
class DuplicatesOptions(OfIndexed):
    """What `contraport.duplicates` is asked; see there for each."""

    threshold: float = option(
        0.999,
        "from which cosine on two items are taken for the same; features that are the same have 1.",
        check=_cosine,
    )


VERB = Verb(
    DuplicatesOptions,
    "contraport.searching:duplicates",
    "Find groups of embedded items that are all but the same.",
    about="""
        Two items are linked where the cosine of their features is at least `threshold`, and a group is what links join.
        How alike different items are depends on the encoder: pairs just below the threshold are counted, and a gap in
        the cosines is proposed as the threshold.
    """,
    examples=(
        "contraport duplicates photos.parquet",
        "contraport duplicates photos.npy --threshold 0.98 --page same.html",
    ),
    show="contraport.cli.console:print_groups",
    extra=EXTRA,
    group=USE,
    page="searching",
)
