"""RunFolder folders that contain an older evaluation, or change during one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.errors import raises_usage_error
from tests.evaluation.builders import build_vector_model, build_vectors, make_run

from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation import evaluate
from contraport.runs import RunFolder

ASKED: dict[str, Any] = {
    "data": (build_vectors(60, 3), build_vectors(40, 3)),
    "metrics": ["knn"],
    "neighbors": 5,
    "progress": False,
}


def test_samples_of_an_older_evaluation_are_removed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", build_vector_model())
    evaluate(run, **ASKED)
    assert "points" in run.page_arrays()
    evaluate(run, alone=True, **ASKED)
    assert not run.samples_path.exists()
    assert list(run.evaluation()["rows"]) == ["trained"]


@pytest.mark.parametrize("before", [True, False], ids=["before its epochs are read", "after"])
def test_rejects_a_model_that_changes_during_the_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    run = make_run(tmp_path / "run", build_vector_model(), epochs=3)
    own_model, own_epochs = RunFolder.model, RunFolder.num_trained_epochs
    left = [True]

    def train_on(run: RunFolder) -> None:
        if left:
            left.clear()
            torch.manual_seed(1)
            run.save_model(Model("mlp", [(6,)]), epochs=4)

    def model(run: RunFolder, **options: Any) -> Model:
        read = own_model(run, **options)
        train_on(run)
        return read

    def num_trained_epochs(run: RunFolder) -> int | None:
        read = own_epochs(run)
        train_on(run)
        return read

    monkeypatch.setattr(RunFolder, *(("model", model) if before else ("num_trained_epochs", num_trained_epochs)))
    with raises_usage_error("run.model_changed", run.path):
        evaluate(run, **ASKED)
    assert not run.evaluation_path.exists()
    assert not run.items_path.exists()
    assert evaluate(run, **ASKED)["epochs"] == 4


def test_finished_evaluations_are_kept_if_a_later_run_fails(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name, build_vector_model()) for name in "ab")
    (second.model_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(UsageError) as caught:
        evaluate([first, second], **ASKED)
    assert str(second.model_path) in str(caught.value)
    assert first.evaluation()["rows"]["trained"].keys() == {"knn"}
    assert not second.evaluation_path.exists()
