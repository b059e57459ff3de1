"""Runs whose extension has not finished: evaluation, embedding and export name the epoch of their model."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from contraport import embed, evaluate, export, train
from contraport.data.stores import ArrayStore
from contraport.runs import Run, WritableRun, as_run_folder
from tests import TIMEOUT
from tests.errors import raises_usage_error
from tests.processes import FORKS

from .conftest import StubObjective
from .test_kill import IN_BATCH, SETTINGS, build_vectors


def evaluate_run(run: Run, data: Any) -> dict[str, Any]:
    unseen = data.with_store(ArrayStore((-data.store.views[0],)), keep_digests=False)
    return evaluate(run, data=(data, unseen), neighbors=5, progress=False)


def test_evaluation_of_a_killed_extension_names_the_trained_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = train(data=build_vectors(), out=tmp_path / "run", **{**SETTINGS, **IN_BATCH, "epochs": 2})
    before = evaluate_run(run, build_vectors())
    assert before["epochs"] == 2
    assert not any("is that of epoch" in note for note in before["notes"])
    extension = {"data": build_vectors(), "out": run.path, "resume": True, "epochs": 3_000, "progress": False}
    process = FORKS.Process(target=train, kwargs=extension)
    process.start()
    end = time.monotonic() + TIMEOUT
    while run.metrics_rows()[-1]["epoch"] < 4:
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.join()
    after = evaluate_run(run, build_vectors())
    assert after["epochs"] == 2
    assert sum("epoch 2" in note and "3000 epochs" in note for note in after["notes"]) == 1
    assert after["rows"] == before["rows"]  # the model of the first training is used
    assert run.evaluation() == after
    for run_command in (
        lambda: embed(run, data=build_vectors(), out=tmp_path / "features.npz", progress=False),
        lambda: export(run, format="safetensors", out=tmp_path / "exported"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "contraport"):
            run_command()
        assert "that of epoch 2" in caplog.text


def test_finished_extension_removes_the_old_evaluation(settings: dict[str, Any]) -> None:
    run = train(**settings, objective=StubObjective())
    resume_options = {"data": settings["data"], "out": run.path, "resume": True, "progress": False}
    with pytest.raises(KeyboardInterrupt):
        train(**resume_options, epochs=4, objective=StubObjective(3, KeyboardInterrupt()))
    assert evaluate_run(run, settings["data"])["epochs"] == 2
    train(**resume_options, objective=StubObjective())
    assert not as_run_folder(run).evaluation_path.exists()
    result = evaluate_run(run, settings["data"])
    assert result["epochs"] == 4
    assert not any("is that of epoch" in note for note in result["notes"])
    train(**resume_options, objective=StubObjective())
    assert run.evaluation() == result  # nothing was trained, so the evaluation stays valid


def test_rejects_a_model_that_was_trained_further_during_evaluation(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(**settings)
    epochs = iter([2, 3])
    monkeypatch.setattr(WritableRun, "saved_model_epoch", lambda self: next(epochs))
    with raises_usage_error("run.model_changed"):
        evaluate_run(run, settings["data"])
    assert not as_run_folder(run).evaluation_path.exists()


def test_model_without_a_recorded_epoch_is_evaluated_with_a_note(settings: dict[str, Any]) -> None:
    run = train(**settings)
    as_run_folder(run).trained_path.unlink()
    result = evaluate_run(run, settings["data"])
    assert result["epochs"] is None
    assert any("is not recorded" in note for note in result["notes"])
    for text in ("", "{}", "[1]", '{"epochs": "two"}', '{"epochs": null}'):
        as_run_folder(run).trained_path.write_text(text)
        with raises_usage_error("run.corrupt", "training.json"):
            evaluate_run(run, settings["data"])
    train(data=settings["data"], out=run.path, resume=True, progress=False)
    assert evaluate_run(run, settings["data"])["epochs"] == 2
