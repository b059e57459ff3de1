"""What `contraport list` is asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from contraport.options import Options, known
from contraport.verbs import BEGIN, EXTRA, Verb


@dataclass(frozen=True, kw_only=True)
class ListOptions(Options):
    """What is to be listed."""

    what: Literal["recipes", "objectives", "encoders", "data", "measures", "suites"] = field(
        kw_only=False, metadata=known("recipes, objectives, encoders, data, measures or suites.")
    )


VERB = Verb(
    ListOptions,
    "contraport.cli.listing:list_names",
    "List the recipes, objectives, encoders, data, measures or suites that have names.",
    examples=("contraport list recipes", "contraport list objectives"),
    show="contraport.cli.listing:print_names",
    extra=EXTRA,
    group=BEGIN,
)
