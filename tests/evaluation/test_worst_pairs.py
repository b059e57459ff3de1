"""Samples of the pairs with the worst audit scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from contraport.data import from_arrays
from contraport.evaluation.report_arrays import MAX_SAVED_WORST_ITEMS, collect_worst_pair_arrays
from contraport.runs import Run, WritableRun

ITEMS = 60


def write_audited_run(folder: Path, **arrays: np.ndarray) -> Run:
    """Write a run whose last pairs have the worst scores; the third worst has no better partner."""
    run = WritableRun.create(folder, {"data": "toy"})
    scores = np.arange(ITEMS)[::-1] / ITEMS
    partners = np.where(np.arange(ITEMS) != ITEMS - 3, 3, -1)
    run.save_arrays(run.pairs_path, {"scores": scores, "partners": partners} | arrays)
    return run


def build_pairs(items: int = ITEMS) -> object:
    """Build pairs whose second view contains the number of the pair in four pixels."""
    second = np.broadcast_to(np.arange(items, dtype=np.uint8)[:, None, None, None], (items, 1, 2, 2)).copy()
    return from_arrays({"vector": np.random.default_rng(0).normal(size=(items, 5)), "picture": second})


def test_worst_pairs_have_both_views_and_the_better_partner(tmp_path: Path) -> None:
    result = collect_worst_pair_arrays(write_audited_run(tmp_path / "run"), build_pairs())
    assert result["worst"].tolist() == list(range(ITEMS - 1, ITEMS - 1 - MAX_SAVED_WORST_ITEMS, -1))
    assert result["worst_1"].shape == (MAX_SAVED_WORST_ITEMS, 5)
    assert result["worst_2"][:, 0, 0, 0].tolist() == result["worst"].tolist()
    assert result["worst_better"][:, 0, 0, 0].tolist() == [3, 3, ITEMS - 3] + [3] * (MAX_SAVED_WORST_ITEMS - 3)
    assert result["worst_views"].tolist() == ["vector", "picture"]


def test_worst_pairs_contain_deliberate_mismatches(tmp_path: Path) -> None:
    run = write_audited_run(tmp_path / "run")
    run.save_arrays(run.mismatched_path, {"partners": np.roll(np.arange(ITEMS), 1)})
    assert (
        collect_worst_pair_arrays(run, build_pairs())["worst_2"][:, 0, 0, 0].tolist()
        == (np.arange(50, 60)[::-1] - 1).tolist()
    )


def test_no_pairs_without_an_audit_or_on_other_items(tmp_path: Path) -> None:
    assert collect_worst_pair_arrays(write_audited_run(tmp_path / "run"), build_pairs(ITEMS + 1)) == {}
    assert collect_worst_pair_arrays(WritableRun.create(tmp_path / "plain", {"data": "toy"}), build_pairs()) == {}
    single_view = from_arrays(np.zeros((ITEMS, 5), dtype=np.float32))
    assert collect_worst_pair_arrays(write_audited_run(tmp_path / "one"), single_view) == {}
