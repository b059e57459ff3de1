"""Samples of the pairs with the worst audit scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from contraport.data import from_arrays
from contraport.evaluation.sample_arrays import MAX_LISTED_ITEMS, collect_worst_pair_arrays
from contraport.runs import Run, RunFolder

ITEMS = 60


def audited(folder: Path, **further: np.ndarray) -> Run:
    """A run whose last pairs are the worst; the third of these has no better partner."""
    run = RunFolder.create(folder, {"data": "toy"})
    scores = np.arange(ITEMS)[::-1] / ITEMS
    partners = np.where(np.arange(ITEMS) != ITEMS - 3, 3, -1)
    run.save_arrays(run.pairs_path, {"scores": scores, "partners": partners} | further)
    return run


def pairs(items: int = ITEMS) -> object:
    """Pairs whose second view is their number in four pixels."""
    second = np.broadcast_to(np.arange(items, dtype=np.uint8)[:, None, None, None], (items, 1, 2, 2)).copy()
    return from_arrays({"vector": np.random.default_rng(0).normal(size=(items, 5)), "picture": second})


def test_worst_pairs_come_first_with_both_views_and_the_better_partner(tmp_path: Path) -> None:
    result = collect_worst_pair_arrays(audited(tmp_path / "run"), pairs())
    assert result["worst"].tolist() == list(range(ITEMS - 1, ITEMS - 1 - MAX_LISTED_ITEMS, -1))
    assert result["worst_1"].shape == (MAX_LISTED_ITEMS, 5)
    assert result["worst_2"][:, 0, 0, 0].tolist() == result["worst"].tolist()
    assert result["worst_better"][:, 0, 0, 0].tolist() == [3, 3, ITEMS - 3] + [3] * (MAX_LISTED_ITEMS - 3)
    assert result["worst_views"].tolist() == ["vector", "picture"]


def test_deliberate_mismatches_are_shown(tmp_path: Path) -> None:
    run = audited(tmp_path / "run")
    run.save_arrays(run.mismatched_path, {"partners": np.roll(np.arange(ITEMS), 1)})
    assert (
        collect_worst_pair_arrays(run, pairs())["worst_2"][:, 0, 0, 0].tolist()
        == (np.arange(50, 60)[::-1] - 1).tolist()
    )


def test_no_pairs_without_an_audit_or_on_other_items(tmp_path: Path) -> None:
    assert collect_worst_pair_arrays(audited(tmp_path / "run"), pairs(ITEMS + 1)) == {}
    assert collect_worst_pair_arrays(RunFolder.create(tmp_path / "plain", {"data": "toy"}), pairs()) == {}
    alone = from_arrays(np.zeros((ITEMS, 5), dtype=np.float32))
    assert collect_worst_pair_arrays(audited(tmp_path / "one"), alone) == {}
