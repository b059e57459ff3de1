"""Data of a run that the report shows, read from the run folder."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from contraport.metrics.intervals import Difference
from contraport.metrics.registry import BASELINE_TITLES
from contraport.plots.figure_setup import SERIES_COLORS
from contraport.runs import MetricsRow, Run, WritableRun, as_different_run_folders
from contraport.runs.run import check_run_folder

PLOTLY_DASH_STYLES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")  # by position of the run


@dataclass(frozen=True)
class ReportedRun:
    """Settings, logged metrics, evaluation and plotted arrays of a reported run.

    Attributes:
        name: name of the run folder; the path if several runs have the same name.
        position: index of the run in the report, which determines its color.
        encoder: names of the encoders, joined by " + ".
        metrics_rows: rows of `metrics.jsonl`, one per logged step; empty if nothing is logged yet.
        evaluation: content of `evaluation.json`; empty if the run is not evaluated.
        figure_arrays: arrays that the evaluation stored for figures; empty if the run is not evaluated.
        online_audit_arrays: arrays of the online audit of training pairs; empty without one.
    """

    name: str
    path: str
    position: int
    encoder: str
    config: dict[str, Any]
    metrics_rows: list[MetricsRow]
    evaluation: dict[str, Any]
    figure_arrays: dict[str, np.ndarray]
    online_audit_arrays: dict[str, np.ndarray]

    @property
    def color(self) -> str:
        """Color of the run in all figures."""
        return SERIES_COLORS[self.position % len(SERIES_COLORS)]

    @property
    def plotly_dash(self) -> str:
        """Plotly dash style of the run's lines, to distinguish runs without color."""
        return PLOTLY_DASH_STYLES[self.position % len(PLOTLY_DASH_STYLES)]

    @property
    def evaluated_or_training_data_name(self) -> str:
        """Name of the evaluation data, or of the training data if not evaluated."""
        return shorten_data_name((self.evaluation or self.config).get("data"))

    @property
    def test_set_and_size(self) -> tuple[str, int | None]:
        """Test set name and size, which must be equal for runs to be compared."""
        return self.evaluated_or_training_data_name, self.evaluation.get("test_items")

    @property
    def training_seconds(self) -> float | None:
        """Training time in seconds, or None if nothing is logged."""
        return self.metrics_rows[-1].get("seconds") if self.metrics_rows else None

    @property
    def metrics_by_encoder(self) -> dict[str, dict[str, Any]]:
        """Metric values by name of the evaluated encoder, then by metric key.

        Empty if the run is not evaluated. The encoders are ``trained``, the baselines such as ``raw``, first
        coordinates of the representation, ``dims 64`` and so on, and ``epoch 1``, ``epoch 2``, ....
        """
        return dict(self.evaluation.get("rows", {}))

    def metric_value(self, key: str, row: str = "trained") -> float | None:
        """Return one metric of an evaluated encoder, or None if it is missing."""
        value = self.metrics_by_encoder.get(row, {}).get(key)
        return None if value is None else float(value)

    def find_stored_difference(self, baseline_or_run: str | ReportedRun, key: str) -> Difference | None:
        """Find the stored difference in a metric from a baseline or another run.

        None unless both were evaluated together on the same items. Another run is found by its values, as its folder
        may have moved; if it was evaluated again, stored differences from its older values no longer match.
        """
        stored = {row: of[key] for row, of in self.evaluation.get("differences", {}).items() if key in of}
        if isinstance(baseline_or_run, str):
            return Difference(**stored[baseline_or_run]) if baseline_or_run in stored else None
        own, others = self.metrics_by_encoder.get("trained", {}), baseline_or_run.metrics_by_encoder.get("trained", {})
        if key not in own or key not in others:
            return None
        expected = own[key] - others[key]
        rows = [
            row
            for row, difference in stored.items()
            if row not in BASELINE_TITLES and math.isclose(difference["value"], expected, rel_tol=0, abs_tol=1e-12)
        ]
        rows.sort(key=lambda row: (row != baseline_or_run.path, Path(row).name != Path(baseline_or_run.path).name))
        return Difference(**stored[rows[0]]) if rows else None

    @property
    def class_names(self) -> list[str]:
        """Class names in the order of integer labels, empty without labels."""
        if "labels" not in self.figure_arrays:
            return []
        if "class_names" in self.figure_arrays:
            return [str(name) for name in self.figure_arrays["class_names"]]
        # The items of the three are different subsets, so that the highest class may be in one of them only.
        subsets = (self.figure_arrays.get(name) for name in ("labels", "plan_labels", "cosine_labels"))
        return [str(label) for label in range(max(int(labels.max()) + 1 for labels in subsets if labels is not None))]


def load_runs(runs: Sequence[str | Path | Run]) -> list[ReportedRun]:
    """Read all runs of a report from their run folders."""
    opened = as_different_run_folders("runs", runs)
    for run in opened:
        check_run_folder(run.path, "runs")
    repeated = Counter(run.name for run in opened)
    return [
        ReportedRun(
            name=run.name if repeated[run.name] == 1 else str(run.path),
            path=str(run.path),
            position=position,
            encoder=_join_encoder_names(run),
            config=run.config(),
            metrics_rows=run.metrics_rows() if run.metrics_path.exists() else [],
            evaluation=run.evaluation() if run.evaluation_path.exists() else {},
            figure_arrays=run.page_arrays() if run.samples_path.exists() else {},
            online_audit_arrays=run.pair_scores() if run.pairs_path.exists() else {},
        )
        for position, run in enumerate(opened)
    ]


def shorten_data_name(data: object) -> str:
    """Return the registered name of a data set, or its last path part."""
    return Path(str(data).strip("<>")).name


def _join_encoder_names(run: WritableRun) -> str:
    """Return the names of a run's encoders, joined by " + "."""
    names = run.config().get("encoder")
    if names is None and run.model_path.exists():
        names = run.read_model_config().get("encoder")
    several = [names] if isinstance(names, str) else names or ["default encoder"]
    return " + ".join(dict.fromkeys(map(str, several)))
