"""Evaluation of run folders that contain an older evaluation or change meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_vector_model, build_vectors, make_run

from contraport.encoders import Model
from contraport.evaluation import evaluate
from contraport.runs import WritableRun

OPTIONS: dict[str, Any] = {
    "data": (build_vectors(60, 3), build_vectors(40, 3)),
    "metrics": ["knn"],
    "neighbors": 5,
    "progress": False,
}


def test_samples_of_an_older_evaluation_are_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    evaluate(run, **OPTIONS)
    assert "points" in run.page_arrays()
    evaluate(run, alone=True, **OPTIONS)
    assert not run.samples_path.exists()
    assert list(run.evaluation()["rows"]) == ["trained"]


@pytest.mark.parametrize("changes_before_epochs", [True, False], ids=["before its epochs are read", "after"])
def test_rejects_a_model_that_changes_during_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes_before_epochs: bool
) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), epochs=3)
    load_model, load_epochs = WritableRun.model, WritableRun.saved_model_epoch
    pending = [True]

    def save_changed_model(run: WritableRun) -> None:
        if pending:
            pending.clear()
            torch.manual_seed(1)
            run.save_model_and_delete_stale_evaluations(Model("mlp", [(6,)]), epochs=4)

    def load_and_change_model(run: WritableRun, **options: Any) -> Model:
        loaded = load_model(run, **options)
        save_changed_model(run)
        return loaded

    def load_epochs_and_change_model(run: WritableRun) -> int | None:
        loaded = load_epochs(run)
        save_changed_model(run)
        return loaded

    monkeypatch.setattr(
        WritableRun,
        *(
            ("model", load_and_change_model)
            if changes_before_epochs
            else ("saved_model_epoch", load_epochs_and_change_model)
        ),
    )
    with raises_usage_error("run.model_changed", run.path):
        evaluate(run, **OPTIONS)
    assert not run.evaluation_path.exists()
    assert not run.items_path.exists()
    assert evaluate(run, **OPTIONS)["epochs"] == 4


def test_finished_evaluations_are_kept_if_a_later_run_fails(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name, build_vector_model()) for name in "ab")
    (second.model_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with raises_usage_error("*", second.model_path):
        evaluate([first, second], **OPTIONS)
    assert first.evaluation()["rows"]["trained"].keys() == {"knn"}
    assert not second.evaluation_path.exists()
