"""Notes on bootstrap intervals of zero width, and on classes with few items."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from scipy.stats import binom

from contraport.evaluation.notes_and_verdict import build_few_shot_notes, build_zero_width_interval_notes
from contraport.metrics.intervals import MetricResult, bootstrap_medians


@pytest.mark.parametrize("items", [2, 24, 10_000])
def test_bound_covers_unseen_items(items: int) -> None:
    (message,) = build_zero_width_interval_notes(
        {"knn": MetricResult(np.ones(items)), "linear_probe": MetricResult(np.zeros(items))}
    )
    assert message.startswith("Linear probe and kNN: all ")
    share = float(re.search(r"(?i)up to ([\d.]+)% ", message)[1]) / 100  # type: ignore[index]
    assert binom.cdf(0, items, share) == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    "result",
    [
        MetricResult(np.arange(24) % 2),
        MetricResult(np.full(24, 0.5)),
        MetricResult(np.ones(24), bootstrap_medians),
        0.7,
    ],
    ids=["some are right", "no counts", "no mean", "one number"],
)
def test_other_results_have_no_zero_width_note(result: MetricResult | float) -> None:
    assert build_zero_width_interval_notes({"knn": result}) == []


def test_note_for_classes_with_fewer_items_than_few_shot_draws() -> None:
    labels = torch.tensor([0] * 30 + [1] * 8 + [2] * 3)
    results = {"few_shot@8": 0.9, "few_shot@3": 0.8, "few_shot@1000": 0.9, "knn": 0.9}
    notes = build_few_shot_notes(results, labels)
    assert [note.split(":")[0] for note in notes] == ["Few-shot@8", "Few-shot@1000"]
    assert ["1 of 3" in notes[0], "3 of 3" in notes[1]] == [True, True]
    assert build_few_shot_notes(results, None) == []
