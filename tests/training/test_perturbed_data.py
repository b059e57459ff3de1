"""Training on mismatched, corrupted or imbalanced data, on subsets, and evaluation of these runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contraport import evaluate, train
from contraport.data import load
from contraport.runs import as_run_folder
from contraport.training.components.data_builder import build_dataset
from contraport.training.config import Settings
from tests.errors import raises_usage_error

OPTIONS: dict[str, Any] = {
    "data": "digits", "encoder": "mlp", "epochs": 1, "batch_size": 64, "max_items": 200,
    "device": "cpu", "progress": False,
}  # fmt: skip


def test_mismatches_are_saved_and_unchanged_on_resume(tmp_path: Path) -> None:
    run = train(**OPTIONS, mismatch=0.2, out=tmp_path / "run")
    partners = as_run_folder(run).partners_after_mismatch()
    assert len(partners) == 200
    assert int((partners != np.arange(200)).sum()) == 40
    longer = train(resume=True, epochs=2, out=tmp_path / "run", progress=False)
    assert np.array_equal(as_run_folder(longer).partners_after_mismatch(), partners)
    clean = train(**OPTIONS, out=tmp_path / "clean")
    with raises_usage_error("run.missing_file", "mismatched.npz"):
        as_run_folder(clean).partners_after_mismatch()
    assert clean.metrics_rows()[-1]["loss"] != run.metrics_rows()[-1]["loss"]


def test_mismatch_applies_to_training_only(tmp_path: Path) -> None:
    run = train(**OPTIONS, mismatch=1.0, out=tmp_path / "run")
    result = evaluate(run, metrics=["knn"], alone=True, progress=False)
    assert result["train_items"] == 200
    assert result["test_items"] == 200


def test_validation_items_are_held_out_training_items() -> None:
    settings = Settings(data="digits", validation=0.25)
    all_items = build_dataset(Settings(data="digits"))
    training_items, test_items = (build_dataset(settings, split) for split in ("train", "test"))
    assert set(training_items.source_rows.tolist()) | set(test_items.source_rows.tolist()) == set(
        all_items.source_rows.tolist()
    )
    assert not set(training_items.source_rows.tolist()) & set(test_items.source_rows.tolist())
    assert len(test_items) == pytest.approx(0.25 * len(all_items), abs=1)
    assert (training_items.split, test_items.split) == ("train", "test")


def test_subset_is_deterministic_and_stratified() -> None:
    one, other = (build_dataset(Settings(data="digits", max_items=50)) for _ in range(2))
    assert len(one) == 50
    assert one.source_rows.tolist() == other.source_rows.tolist()
    assert one.labels is not None
    assert one.labels.bincount().tolist() == [5] * 10


def test_test_items_are_limited_separately() -> None:
    def count_items(**options: Any) -> list[int]:
        return [len(build_dataset(Settings(data="digits", **options), split)) for split in ("train", "test")]

    assert count_items(max_items=50) == [50, 50]
    assert count_items(max_items=50, test_items=120) == [50, 120]
    assert count_items(test_items=120) == [1_348, 120]
    assert count_items(max_items=50, test_items=10_000) == [50, 449]
    assert count_items(max_items=50, test_items=120, validation=0.25) == [50, 120]


def test_selects_some_views(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / "views.npz",
        view0=random.normal(size=(40, 3)),
        view1=random.normal(size=(40, 5)),
        labels=np.arange(40) % 2,
    )
    dataset = build_dataset(Settings(data=tmp_path / "views.npz", given_views=[1]))
    assert dataset.shapes == ((5,),)
    dataset = build_dataset(Settings(data=tmp_path / "views.npz", given_views=["view1", 0]))
    assert dataset.view_names == ("view1", "view0")
    for views, code in (([2], "unknown"), (["view1", 1], "duplicate")):
        with raises_usage_error(f"given_views.{code}", *views):
            build_dataset(Settings(data=tmp_path / "views.npz", given_views=views))


def test_imbalance_applies_to_training_only_and_can_be_weighted(tmp_path: Path) -> None:
    settings = Settings(data="digits", max_items=400, imbalance=8, sample_weight="classes")
    training_items, test_items = build_dataset(settings), build_dataset(settings, "test")
    assert training_items.labels is not None
    assert training_items.weights is not None
    assert training_items.labels.bincount().tolist()[::9] == [40, 5]
    sums = [float(training_items.weights[training_items.labels == one].sum()) for one in range(10)]
    assert sums == pytest.approx([len(training_items) / 10] * 10)
    assert test_items.weights is None
    assert len(test_items) == 400
    with raises_usage_error("imbalance.*"):
        build_dataset(Settings(data="digits", imbalance=8, ignore_labels=True))
    run = train(
        **OPTIONS, imbalance=8, sample_weight="classes", constraint="balanced:marginals=weights", out=tmp_path / "run"
    )
    assert evaluate(run, metrics=["knn"], alone=True, progress=False)["train_items"] < 100
    both = (load("digits"), load("digits", "test"))
    other = evaluate(run, data=both, metrics=["knn"], alone=True, progress=False)
    assert other["train_items"] == len(both[0])  # the imbalance does not apply to other data


def test_other_data_are_evaluated_unperturbed(tmp_path: Path) -> None:
    run = train(**OPTIONS, corrupt="noise:5", out=tmp_path / "run")
    noisy = evaluate(run, metrics=["knn"], alone=True, progress=False)["rows"]["trained"]["knn"]
    other = evaluate(run, data=(load("digits"), load("digits", "test")), metrics=["knn"], alone=True, progress=False)
    assert other["test_items"] == 449
    assert other["rows"]["trained"]["knn"] != noisy


def test_random_views_of_frozen_features_cannot_be_mismatched(tmp_path: Path) -> None:
    run = train(**OPTIONS, out=tmp_path / "run")
    with raises_usage_error("mismatch.frozen"):
        train(**OPTIONS, mismatch=0.5, freeze=True, init=run.path, out=tmp_path / "frozen")


def test_saves_metrics_of_each_item(tmp_path: Path) -> None:
    run = train(**OPTIONS, out=tmp_path / "run")
    result = evaluate(run, metrics=["knn", "uniformity"], alone=True, progress=False)
    assert list(result["rows"]) == ["trained"]
    assert list(as_run_folder(run).test_item_metric_values()) == ["knn", "uniformity"]
    for name, values in as_run_folder(run).test_item_metric_values().items():
        assert values.mean() == pytest.approx(result["rows"]["trained"][name])
    assert not as_run_folder(run).samples_path.exists()
