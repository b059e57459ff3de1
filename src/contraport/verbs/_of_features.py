"""What is asked of every verb that looks at features."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contraport.options import Options, known, option


@dataclass(frozen=True, kw_only=True)
class OfFeatures(Options):
    """What such a verb is asked."""

    features: str | Path | Any = field(
        kw_only=False,
        metadata=known("a file that `contraport embed` wrote, .npz, .npy or .parquet; or from Python an array (n, F)."),
    )
    device: str = option("auto", "auto, cpu, cuda or another of torch's devices.")
    page: str | Path | None = option(
        None, "an .html file to write that shows what is found, with pictures where the items have some; default: none."
    )
    overwrite: bool = option(False, "replace the files to write where they exist.")


@dataclass(frozen=True, kw_only=True)
class OfIndexed(OfFeatures):
    """What a verb is asked that compares features with all others."""

    index: str | Path | None = option(
        None,
        "an index of the features in a file, by faiss, made where there is none or one of others: more than a million "
        "rows are looked at in parts, so that a few of the nearest may be missed; default: all are looked at.",
    )
