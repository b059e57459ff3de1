"""Note on metrics on which all test items agree, so that their bootstrap interval has no width."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.stats import binom

from contraport.evaluation.notes import build_zero_width_interval_notes
from contraport.metrics.intervals import MetricResult, bootstrap_medians


@pytest.mark.parametrize("items", [2, 24, 10_000])
def test_bound_covers_unseen_items(items: int) -> None:
    (told,) = build_zero_width_interval_notes(
        {"knn": MetricResult(np.ones(items)), "linear_probe": MetricResult(np.zeros(items))}
    )
    assert told.startswith("Linear probe and kNN: all ")
    share = float(re.search(r"Up to ([\d.]+)% ", told)[1]) / 100  # type: ignore[index]
    assert binom.cdf(0, items, share) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    "finding",
    [
        MetricResult(np.arange(24) % 2),
        MetricResult(np.full(24, 0.5)),
        MetricResult(np.ones(24), bootstrap_medians),
        0.7,
    ],
    ids=["some are right", "no counts", "no mean", "one number"],
)
def test_other_results_have_no_note(finding: MetricResult | float) -> None:
    assert build_zero_width_interval_notes({"knn": finding}) == []
