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
