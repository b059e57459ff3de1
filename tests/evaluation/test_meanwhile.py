"""What lies in a run's folder from before, and what becomes of it while it is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.evaluation.making import make_run, vector_model, vectors

from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.evaluation import evaluate
from contraport.runs import Run

ASKED: dict[str, Any] = {
    "data": (vectors(60, 3), vectors(40, 3)),
    "measures": ["knn"],
    "neighbors": 5,
    "progress": False,
}


def test_what_the_page_drew_of_an_older_evaluation_goes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model())
    evaluate(run, **ASKED)
    assert "points" in run.samples()
    evaluate(run, alone=True, **ASKED)
    assert not run.samples_path.exists()
    assert list(run.evaluation()["rows"]) == ["trained"]


@pytest.mark.parametrize("before", [True, False], ids=["before its epochs are read", "after"])
def test_a_model_that_is_trained_on_meanwhile_is_not_judged_as_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    run = make_run(tmp_path / "run", vector_model(), epochs=3)
    own_model, own_epochs = Run.model, Run.model_epochs
    left = [True]

    def train_on(run: Run) -> None:
        if left:
            left.clear()
            torch.manual_seed(1)
            run.save_model(Model("mlp", [(6,)]), epochs=4)

    def model(run: Run, **given: Any) -> Model:
        read = own_model(run, **given)
        train_on(run)
        return read

    def model_epochs(run: Run) -> int | None:
        read = own_epochs(run)
        train_on(run)
        return read

    monkeypatch.setattr(Run, *(("model", model) if before else ("model_epochs", model_epochs)))
    with pytest.raises(UsageError, match=r"run: .*run got another model meanwhile; evaluate it again"):
        evaluate(run, **ASKED)
    assert not run.evaluation_path.exists()
    assert not run.items_path.exists()
    assert evaluate(run, **ASKED)["epochs"] == 4


def test_of_several_runs_those_that_are_done_are_kept_where_a_later_one_fails(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / name, vector_model()) for name in "ab")
    (second.model_path / "model.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(UsageError, match=r"model: .*b/model does not hold a model"):
        evaluate([first, second], **ASKED)
    assert first.evaluation()["rows"]["trained"].keys() == {"knn"}
    assert not second.evaluation_path.exists()
