"""A run as the report shows it, read once from its folder."""

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
    """Name, settings, logged metrics, evaluation and samples of one run; parts that do not exist yet are None."""

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
        """Color of the run in every figure."""
        return SERIES[self.position % len(SERIES)]

    @property
    def dash(self) -> str:
        """Line style of the run, which distinguishes it without color."""
        return DASHES[self.position % len(DASHES)]

    @property
    def data(self) -> str:
        """Name of the data that the run was evaluated on, or else trained on."""
        return data_name((self.evaluation or self.config).get("data"))

    @property
    def evaluated_on(self) -> tuple[str, int | None]:
        """Name of the evaluation data and number of test items."""
        return self.data, (self.evaluation or {}).get("test_items")

    @property
    def seconds(self) -> float | None:
        """Training time in seconds."""
        return self.metrics[-1].get("seconds") if self.metrics else None

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Evaluated values by row (``trained``, baselines, epochs) and metric; empty without an evaluation."""
        return dict((self.evaluation or {}).get("rows", {}))

    def value(self, key: str, row: str = "trained") -> float | None:
        """Return the value of a metric for the trained encoder or another row, or None."""
        value = self.rows.get(row, {}).get(key)
        return None if value is None else float(value)

    def difference(self, other: str | ReportRun, key: str) -> Difference | None:
        """Return the paired difference of a metric from a baseline (by its row) or from another run.

        None unless both were evaluated together on the same items. Another run is found by its values, as its folder
        may have moved; if it was evaluated again, stored differences from its older values no longer match.
        """
        stored = {row: of[key] for row, of in (self.evaluation or {}).get("differences", {}).items() if key in of}
        if isinstance(other, str):
            return Difference(**stored[other]) if other in stored else None
        own, others = self.rows.get("trained", {}), other.rows.get("trained", {})
        if key not in own or key not in others:
            return None
        expected = own[key] - others[key]
        rows = [
            row
            for row, found in stored.items()
            if row not in BASELINES and math.isclose(found["value"], expected, rel_tol=0, abs_tol=1e-12)
        ]
        rows.sort(key=lambda row: (row != other.path, Path(row).name != Path(other.path).name))
        return Difference(**stored[rows[0]]) if rows else None

    @property
    def class_names(self) -> list[str]:
        """Class names in the order of their labels; empty without labels."""
        if self.samples is None or "labels" not in self.samples:
            return []
        if "class_names" in self.samples:
            return [str(name) for name in self.samples["class_names"]]
        return [str(label) for label in range(int(self.samples["labels"].max()) + 1)]


def load_runs(runs: Sequence[str | Path | Run]) -> list[ReportRun]:
    """Read the runs of a report from their folders.

    Raises:
        UsageError: there is no run, or a folder is no run or holds a corrupt file.
    """
    check(len(runs) > 0, "runs: must have at least one run folder, got none.", "missing")
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
    """Return a short name of data: a registered name, the last part of a path, or the name of an object."""
    return Path(str(data).strip("<>")).name


def _encoder(run: Run) -> str:
    """Return the names of the encoders from the settings, or else the defaults that training chose."""
    names = run.config().get("encoder")
    if names is None and run.model_path.exists():
        names = run.model_config().get("encoder")
    several = [names] if isinstance(names, str) else names or ["default encoder"]
    return " + ".join(dict.fromkeys(map(str, several)))
