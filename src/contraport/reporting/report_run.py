"""What the page shows of each run, read once: what is missing is known here, and said on the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contraport.errors import check
from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BASELINES
from contraport.plots.colors import SERIES
from contraport.runs import MetricsRow, Run

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


@dataclass(frozen=True)
class ReportRun:
    """One run as the page shows it."""

    name: str
    path: str
    position: int
    encoder: str
    config: dict[str, Any]
    metrics: list[MetricsRow]
    evaluation: dict[str, Any] | None
    samples: dict[str, np.ndarray] | None
    pairs: dict[str, np.ndarray] | None = None

    @property
    def color(self) -> str:
        """The colour of the run, the same in every figure."""
        return SERIES[self.position % len(SERIES)]

    @property
    def dash(self) -> str:
        """The line style of the run, which shows a line under another, in print, and to those who see no colours."""
        return DASHES[self.position % len(DASHES)]

    @property
    def data(self) -> str:
        """The name of the data that the run was evaluated on, or else trained on."""
        return data_name((self.evaluation or self.config).get("data"))

    @property
    def evaluated_on(self) -> tuple[str, int | None]:
        """The data that the run was evaluated on, and how many of its test items, where that is told."""
        return self.data, (self.evaluation or {}).get("test_items")

    @property
    def seconds(self) -> float | None:
        """How long the training took, in seconds."""
        return self.metrics[-1].get("seconds") if self.metrics else None

    @property
    def values(self) -> dict[str, float]:
        """What the trained encoder reaches, by measure; nothing before an evaluation."""
        return dict((self.evaluation or {}).get("rows", {}).get("trained", {}))

    def difference(self, other: str | ReportRun, key: str) -> Difference | None:
        """Return how much larger a measure of the run is than that of a baseline, by its row, or of another run.

        None where the two were not measured together on the same items. Another run is known by its numbers: its
        folder may have moved since, or have been measured anew, and then an older difference is none of it.
        """
        known = {row: of[key] for row, of in (self.evaluation or {}).get("differences", {}).items() if key in of}
        if isinstance(other, str):
            return Difference(**known[other]) if other in known else None
        if key not in self.values or key not in other.values:
            return None
        apart = self.values[key] - other.values[key]
        rows = [
            row
            for row, found in known.items()
            if row not in BASELINES and math.isclose(found["value"], apart, rel_tol=0, abs_tol=1e-12)
        ]
        rows.sort(key=lambda row: (row != other.path, Path(row).name != Path(other.path).name))
        return Difference(**known[rows[0]]) if rows else None

    @property
    def class_names(self) -> list[str]:
        """The names of the classes in the order of their labels; empty without labels."""
        if self.samples is None or "labels" not in self.samples:
            return []
        if "class_names" in self.samples:
            return [str(name) for name in self.samples["class_names"]]
        return [str(label) for label in range(int(self.samples["labels"].max()) + 1)]


def shown(runs: Sequence[str | Path | Run]) -> list[ReportRun]:
    """Read every run; a part that a run does not have yet is none, a corrupt part is an error.

    Raises:
        UsageError: there is no run, or a folder is no run or holds a corrupt file.
    """
    check(len(runs) > 0, "runs: expected one run folder or more, got none.")
    opened = [run if isinstance(run, Run) else Run(run) for run in runs]
    repeated = Counter(run.name for run in opened)
    return [
        ReportRun(
            name=run.name if repeated[run.name] == 1 else str(run.path),
            path=str(run.path),
            position=position,
            encoder=_encoder(run),
            config=run.config(),
            metrics=run.metrics() if run.metrics_path.exists() else [],
            evaluation=run.evaluation() if run.evaluation_path.exists() else None,
            samples=run.samples() if run.samples_path.exists() else None,
            pairs=run.pairs() if run.pairs_path.exists() else None,
        )
        for position, run in enumerate(opened)
    ]


def data_name(data: object) -> str:
    """Return what the page calls some data: a name, the last part of a path, or the name of an object."""
    return Path(str(data).strip("<>")).name


def _encoder(run: Run) -> str:
    """Return the encoders that were asked for, or else the defaults that the training chose."""
    chosen = run.config().get("encoder")
    if chosen is None and run.model_path.exists():
        chosen = run.model_config().get("encoder")
    names = [chosen] if isinstance(chosen, str) else chosen or ["default encoder"]
    return " + ".join(dict.fromkeys(map(str, names)))
