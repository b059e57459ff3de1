"""Where all test items agree the bootstrap's interval has no width: what it does not say is said."""

from __future__ import annotations

import re

import numpy as np
import pytest
from scipy.stats import binom

from contraport.evaluation.unanimous import unanimous
from contraport.metrics.intervals import MetricResult, median


@pytest.mark.parametrize("items", [2, 24, 10_000])
def test_as_many_others_are_seldom_missed(items: int) -> None:
    (told,) = unanimous({"knn": MetricResult(np.ones(items)), "linear_probe": MetricResult(np.zeros(items))})
    assert told.startswith("Linear probe and kNN are the same on all")
    share = float(re.search(r"up to ([\d.]+)% ", told)[1]) / 100  # type: ignore[index]
    assert binom.cdf(0, items, share) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    "finding",
    [MetricResult(np.arange(24) % 2), MetricResult(np.full(24, 0.5)), MetricResult(np.ones(24), median), 0.7],
    ids=["some are right", "no counts", "no mean", "one number"],
)
def test_of_others_nothing_is_said(finding: MetricResult | float) -> None:
    assert unanimous({"knn": finding}) == []
