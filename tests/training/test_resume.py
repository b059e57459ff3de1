from __future__ import annotations

import logging
import os
import shutil
import signal
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from contraport._utils.files import checksum_path
from contraport.data import Dataset, from_arrays
from contraport.runs import Run, WritableRun, as_run_folder
from contraport.training import train
from contraport.training.callbacks import checkpoints
from contraport.training.callbacks.checkpoints import write_checkpoint
from contraport.training.loop import Loop
from tests.errors import raises_usage_error

from .conftest import StubObjective
from .test_train import are_equal_states, get_model_state

RESUME_CALL = r"contraport\.train\(resume=True, out='.*/run', data=\.\.\., objective=\.\.\.\) in Python"


def train_until_interrupt(settings: dict[str, Any], at: int, **extra_options: Any) -> Run:
    """Start a run whose objective raises KeyboardInterrupt at this step."""
    with pytest.raises(KeyboardInterrupt, match=RESUME_CALL):
        train(**settings, objective=StubObjective(at, KeyboardInterrupt()), **extra_options)
    return Run(settings["out"])


def list_losses(run: Run) -> list[tuple[int, int, float, float]]:
    return [(row["step"], row["epoch"], row["loss"], row["lr"]) for row in run.metrics_rows()]


@pytest.mark.parametrize(
    ("at", "batch_size", "extra_options"),
    [
        (1, 32, {}),
        (6, 32, {}),
        (7, 32, {}),
        (9, 10, {"checkpoint_minutes": 0}),
        (14, 10, {"checkpoint_minutes": 0, "log_every": 3}),
        (15, 10, {"checkpoint_minutes": 0, "log_every": 3}),
        (17, 10, {"checkpoint_minutes": 0, "grad_accum_steps": 3}),
        (18, 10, {"checkpoint_minutes": 0, "num_workers": 1}),
    ],
)
def test_resumed_run_equals_an_uninterrupted_one(
    settings: dict[str, Any], tmp_path: Path, at: int, batch_size: int, extra_options: dict[str, Any]
) -> None:
    settings.update({"epochs": 4, "log_every": 1, "batch_size": batch_size, **extra_options})
    uninterrupted = train(**{**settings, "out": tmp_path / "whole"}, objective=StubObjective())
    stopped = train_until_interrupt(settings, at)
    assert not as_run_folder(stopped).model_path.exists()
    resumed = train(out=stopped.path, resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted))
    assert list_losses(resumed) == list_losses(uninterrupted)


@pytest.mark.parametrize("at", [3, 4, 5, 6])
def test_run_killed_between_two_checkpoints_keeps_those_of_epochs(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    writes: list[Path] = []

    def write(run: WritableRun, loop: Loop, path: Path) -> None:
        writes.append(path)
        if len(writes) == at:
            raise KeyboardInterrupt
        write_checkpoint(run, loop, path)

    monkeypatch.setattr(checkpoints, "write_checkpoint", write)
    with pytest.raises(KeyboardInterrupt):
        train(**settings | {"epochs": 3}, objective=StubObjective(), keep_every=1)
    resumed = train(out=settings["out"], resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    content = {path.name for path in as_run_folder(resumed).checkpoints.glob("*.ckpt")}
    assert content == {"epoch-0001.ckpt", "epoch-0002.ckpt", "epoch-0003.ckpt", "last.ckpt"}


def test_resume_starts_at_the_next_batch(settings: dict[str, Any]) -> None:
    run = train_until_interrupt({**settings, "batch_size": 10, "checkpoint_minutes": 0}, at=12)
    objective = StubObjective()
    train(out=run.path, resume=True, data=settings["data"], objective=objective, progress=False)
    assert objective.calls == 14 - 11  # two epochs of 7 steps, of which 11 are saved


@pytest.mark.parametrize("change", ["fewer", "others", "labels", "none"])
def test_resume_rejects_changed_items(settings: dict[str, Any], change: str) -> None:
    run = train(**settings)
    views, labels = settings["data"].store.views[0], settings["data"].labels
    rows = slice(0, 60) if change == "fewer" else slice(None)
    labels = labels.flip(0) if change == "labels" else labels
    items = from_arrays(-views if change == "others" else views[rows], labels=labels[rows], name="vectors")
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    if change == "none":
        assert train(out=run.path, resume=True, data=items, epochs=3, progress=False).metrics_rows()[-1]["epoch"] == 3
        return
    with raises_usage_error("data.changed", run.path):
        train(out=run.path, resume=True, data=items, epochs=3, progress=False)
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [9, 14], ids=["within an epoch", "at the end of one"])
def test_signal_finishes_the_step_and_saves(settings: dict[str, Any], number: int, at: int) -> None:
    class SelfSignallingObjective(StubObjective):
        def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
            loss = super().forward(z0, z1)
            if self.calls == at:
                os.kill(os.getpid(), number)
            return loss

    SelfSignallingObjective.__name__ = "StubObjective"  # the recorded name, so that the run can be resumed
    settings.update(epochs=3, batch_size=10)
    uninterrupted = train(**{**settings, "out": settings["out"].with_name("whole")}, objective=StubObjective())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt, match=RESUME_CALL):
        train(**settings, objective=SelfSignallingObjective())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers
    run = Run(settings["out"])
    assert torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)["step"] == at
    resumed = train(out=run.path, resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted))
    assert list_losses(resumed) == list_losses(uninterrupted)


def test_second_ctrl_c_stops_immediately(settings: dict[str, Any]) -> None:
    class TwiceInterruptedObjective(StubObjective):
        def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            return super().forward(z0, z1)

    TwiceInterruptedObjective.__name__ = "StubObjective"  # the recorded name, so that the run can be resumed
    objective = TwiceInterruptedObjective()
    with pytest.raises(KeyboardInterrupt, match=RESUME_CALL):
        train(**settings, objective=objective)
    assert objective.calls == 0
    path = as_run_folder(Run(settings["out"])).log_path
    log = path.read_text()
    assert log.count("stopped") == 1
    assert "last checkpoint" not in log
    train(out=settings["out"], resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert "no checkpoint" in path.read_text()


def test_partial_files_are_deleted(settings: dict[str, Any]) -> None:
    run = train_until_interrupt(settings, at=3)
    for temporary_file in (
        run.path / f".metrics-{uuid.uuid4().hex}.jsonl",
        as_run_folder(run).checkpoints / f".last-{uuid.uuid4().hex}.ckpt",
    ):
        temporary_file.write_text("half")
    (run.path / f".model-{uuid.uuid4().hex}").mkdir()
    train(out=run.path, resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert not list(run.path.rglob(".*"))


def test_resume_of_images_by_name(tmp_path: Path) -> None:
    common: dict[str, Any] = {"data": "digits", "batch_size": 600, "progress": False, "encoder": "mlp"}
    uninterrupted = train(**common, epochs=3, out=tmp_path / "whole")
    part = train(**common, epochs=2, out=tmp_path / "part", lr_scheduler="constant", warmup_epochs=0)
    assert not are_equal_states(get_model_state(part), get_model_state(uninterrupted))
    same_schedule = train(**common, epochs=3, out=tmp_path / "other", lr_scheduler="constant", warmup_epochs=0)
    extended = train(resume=True, out=part.path, epochs=3, progress=False)
    assert are_equal_states(get_model_state(extended), get_model_state(same_schedule))
    assert extended.config()["epochs"] == 3


def test_ctrl_c_restores_the_signal_handler(settings: dict[str, Any]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    run = train_until_interrupt(settings, at=3)
    assert signal.getsignal(signal.SIGINT) is handler
    assert (as_run_folder(run).checkpoints / "last.ckpt").exists()
    log = as_run_folder(run).log_path.read_text()
    assert log.count("stopped") == 1
    assert "last checkpoint" in log


def test_ctrl_c_keeps_the_console_output(settings: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    train_until_interrupt({**settings, "progress": True}, at=4)
    assert "epoch 1/2" in capsys.readouterr().err  # without a terminal, a line for the first row


def test_rows_after_the_checkpoint_are_dropped(settings: dict[str, Any]) -> None:
    run = train_until_interrupt({**settings, "epochs": 3}, at=6, log_every=1)
    assert [row["step"] for row in run.metrics_rows()] == [1, 2, 3, 4, 5]
    train(out=run.path, resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert [row["step"] for row in run.metrics_rows()] == [1, 2, 3, 4, 5, 6]


def test_elapsed_time_continues(settings: dict[str, Any]) -> None:
    run = train(**settings)
    first = run.metrics_rows()[-1]["seconds"]
    train(out=run.path, resume=True, epochs=3, data=settings["data"], progress=False)
    assert run.metrics_rows()[-1]["seconds"] > first


def test_resume_of_a_finished_run_does_nothing(settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    run = train(**settings)
    before = get_model_state(run)
    caplog.clear()
    with caplog.at_level(logging.INFO, "contraport"):
        train(out=run.path, resume=True, data=settings["data"], progress=False)
    assert "already has 2 epochs" in caplog.text
    assert "resume: from step" not in caplog.text
    assert "few steps" not in caplog.text
    assert are_equal_states(get_model_state(run), before)
    assert len(run.metrics_rows()) == 2


def test_outdated_evaluation_is_deleted(settings: dict[str, Any]) -> None:
    run = train(**settings)
    as_run_folder(run).evaluation_path.write_text("{}")
    train(out=run.path, resume=True, data=settings["data"], progress=False)
    assert as_run_folder(run).evaluation_path.exists()
    train(out=run.path, resume=True, epochs=3, data=settings["data"], progress=False)
    assert not as_run_folder(run).evaluation_path.exists()


@pytest.mark.parametrize(
    ("changes", "code", "values"),
    [
        ({"epochs": 1}, "epochs.decreased", (2, 1)),
        ({"epochs": "3"}, "epochs.invalid", ("3",)),
        ({"lr": 0.5}, "lr.changed", ("default", 0.5)),
        ({"seed": 1}, "seed.changed", (0, 1)),
        ({"objective": "gca-uot"}, "objective.changed", ("nt-xent", "gca-uot")),
        ({"data": "digits"}, "data.changed", ("<vectors>", "digits")),
        ({"overwrite": True}, "resume.conflict", ("overwrite",)),
    ],
)
def test_rejects_changed_options_on_resume(
    settings: dict[str, Any], changes: dict[str, Any], code: str, values: tuple[object, ...]
) -> None:
    run = train(**settings)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with raises_usage_error(code, *values):
        train(**{"data": settings["data"], "out": run.path, "resume": True, "progress": False, **changes})
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_accepts_equal_options_on_resume(settings: dict[str, Any]) -> None:
    run = train(**settings)
    train(**settings, resume=True, num_workers=0, device="cpu")
    assert len(run.metrics_rows()) == 2


def test_requires_objects_again(settings: dict[str, Any]) -> None:
    run = train(**settings)
    with raises_usage_error("data.object_required", "<vectors>"):
        train(out=run.path, resume=True)


def test_resume_rejects_a_corrupt_checkpoint(settings: dict[str, Any], vectors: Dataset) -> None:
    run = train(**settings)
    (as_run_folder(run).checkpoints / "last.ckpt").write_bytes(b"not a checkpoint")
    with raises_usage_error("run.corrupt", "last.ckpt"):
        train(out=run.path, resume=True, data=vectors)


@pytest.mark.parametrize("remaining_file", ["model/training.json", "metrics.jsonl", "checkpoints/epoch-0002.ckpt"])
def test_resume_rejects_a_missing_last_checkpoint(
    settings: dict[str, Any], vectors: Dataset, remaining_file: str
) -> None:
    run = as_run_folder(train(**settings | {"epochs": 2}, keep_every=2))
    run.last_checkpoint.unlink()
    evidence_files = [run.trained_path, run.metrics_path, run.checkpoints / "epoch-0002.ckpt"]
    assert run.path / remaining_file in evidence_files
    for path in evidence_files:
        if path != run.path / remaining_file:
            path.unlink()
    content = (run.path / remaining_file).read_bytes()
    with raises_usage_error("resume.not_found", "last.ckpt"):
        train(out=run.path, resume=True, data=vectors)
    assert (run.path / remaining_file).read_bytes() == content


def test_run_killed_before_its_last_checkpoint_starts_anew(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(run: WritableRun, loop: Loop, path: Path) -> None:
        if path.name == "last.ckpt":
            raise KeyboardInterrupt
        write_checkpoint(run, loop, path)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoints, "write_checkpoint", write)
        with pytest.raises(KeyboardInterrupt):
            train(**settings | {"epochs": 2}, objective=StubObjective(), keep_every=1)
    assert (Path(settings["out"]) / "checkpoints" / "epoch-0001.ckpt").exists()
    resumed = train(out=settings["out"], resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert resumed.metrics_rows()[-1]["epoch"] == 2


def test_resume_rejects_an_unknown_key(settings: dict[str, Any], vectors: Dataset) -> None:
    run = train(**settings)
    as_run_folder(run).config_path.write_text(yaml.safe_dump({**run.config(), "epohcs": 3}))
    with raises_usage_error("*unknown", "config.yaml", "epohcs", "epochs"):
        train(out=run.path, resume=True, data=vectors)


def test_resumes_a_learned_temperature_of_earlier_versions(settings: dict[str, Any], tmp_path: Path) -> None:
    """Older checkpoints contain the temperature and its optimizer state without dimensions."""
    settings.update({"epochs": 2, "temperature": "learn"})
    run = train(**settings)
    shutil.copytree(run.path, tmp_path / "as it was")
    state = torch.load(as_run_folder(run).last_checkpoint, weights_only=True)
    changed = reshape_to_scalars(state)
    assert str(changed) != str(state)
    torch.save(changed, as_run_folder(run).last_checkpoint)
    checksum_path(as_run_folder(run).last_checkpoint).unlink()
    resume_options = {"data": settings["data"], "resume": True, "epochs": 3, "progress": False}
    resumed, expected = (train(out=path, **resume_options) for path in (run.path, tmp_path / "as it was"))
    assert list_losses(resumed) == list_losses(expected)
    assert are_equal_states(get_model_state(resumed), get_model_state(expected))


def reshape_to_scalars(value: Any) -> Any:
    """Return the state with tensors of shape (1,) reshaped to scalars."""
    if isinstance(value, dict):
        return {name: reshape_to_scalars(part) for name, part in value.items()}
    if isinstance(value, Tensor) and value.shape == (1,):
        return value.reshape(())
    return value
