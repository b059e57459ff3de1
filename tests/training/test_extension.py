"""A training that was extended and has not ended: what is asked of its model says which one that is."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from contraport import embed, evaluate, export, train
from contraport.data.stores import ArrayStore
from contraport.runs import Run, RunFolder, as_run_folder
from tests import TIMEOUT
from tests.errors import raises_usage_error
from tests.processes import FORKS

from .conftest import Pull
from .test_kill import IN_BATCH, SETTINGS, vectors


def measured(run: Run, data: Any) -> dict[str, Any]:
    unseen = data.with_store(ArrayStore((-data.store.views[0],)), keep_digests=False)
    return evaluate(run, data=(data, unseen), neighbors=5, progress=False)


def test_evaluation_of_a_killed_extension_names_the_trained_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(data=vectors(), out=tmp_path / "run", **{**SETTINGS, **IN_BATCH, "epochs": 2})
    before = measured(run, vectors())
    assert before["epochs"] == 2
    assert not any("is that of epoch" in note for note in before["notes"])
    more = {"data": vectors(), "out": run.path, "resume": True, "epochs": 3_000, "progress": False}
    process = FORKS.Process(target=train, kwargs=more)
    process.start()
    end = time.monotonic() + TIMEOUT
    while run.metrics_rows()[-1]["epoch"] < 4:
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.join()
    after = measured(run, vectors())
    assert after["epochs"] == 2
    assert sum("epoch 2" in note and "3000 epochs" in note for note in after["notes"]) == 1
    assert after["rows"] == before["rows"], "the model is still that of the first end"
    assert run.evaluation() == after
    for door in (
        lambda: embed(run, data=vectors(), out=tmp_path / "features.npz", progress=False),
        lambda: export(run, format="safetensors", out=tmp_path / "exported"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "contraport"):
            door()
        assert "that of epoch 2" in caplog.text


def test_finished_extension_removes_the_old_evaluation(settings: dict[str, Any]) -> None:
    run = train(**settings, objective=Pull())
    again = {"data": settings["data"], "out": run.path, "resume": True, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        train(**again, epochs=4, objective=Pull(3, KeyboardInterrupt()))
    assert measured(run, settings["data"])["epochs"] == 2
    train(**again, objective=Pull())
    assert not as_run_folder(run).evaluation_path.exists()
    result = measured(run, settings["data"])
    assert result["epochs"] == 4
    assert not any("is that of epoch" in note for note in result["notes"])
    train(**again, objective=Pull())
    assert run.evaluation() == result, "nothing was trained, so it holds"


def test_rejects_a_model_that_was_trained_further_during_evaluation(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(**settings)
    epochs = iter([2, 3])
    monkeypatch.setattr(RunFolder, "num_trained_epochs", lambda self: next(epochs))
    with raises_usage_error("run.model_changed"):
        measured(run, settings["data"])
    assert not as_run_folder(run).evaluation_path.exists()


def test_model_without_a_recorded_epoch_is_evaluated_with_a_note(settings: dict[str, Any]) -> None:
    run = train(**settings)
    as_run_folder(run).trained_path.unlink()
    result = measured(run, settings["data"])
    assert result["epochs"] is None
    assert any("is not recorded" in note for note in result["notes"])
    for text in ("", "{}", "[1]", '{"epochs": "two"}', '{"epochs": null}'):
        as_run_folder(run).trained_path.write_text(text)
        with raises_usage_error("run.corrupt", "training.json"):
            measured(run, settings["data"])
    train(data=settings["data"], out=run.path, resume=True, progress=False)
    assert measured(run, settings["data"])["epochs"] == 2
