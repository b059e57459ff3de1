"""Locks of run folders: one training at a time, and takeover of the locks of ended processes."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from torch import Tensor

from contraport._utils import locks
from contraport.runs import Run, as_run_folder
from contraport.training import train
from tests import TIMEOUT
from tests.errors import raises_usage_error

from .conftest import StubObjective


class CallbackObjective(StubObjective):
    """Objective that calls a function at its third step."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
        if self.calls == 2:
            self.function()
        return super().forward(z0, z1)


CallbackObjective.__name__ = "StubObjective"


def write_foreign_lock(run: Run, **changes: Any) -> None:
    """Write the lock file of another process."""
    as_run_folder(run).lock_path.write_text(json.dumps({**locks._build_process_record(), **changes}))


@pytest.mark.parametrize("mode", ["resume", "overwrite"])
def test_second_training_is_rejected_and_changes_nothing(settings: dict[str, Any], mode: str) -> None:
    run = Run(settings["out"])
    recorded_pids = []

    def train_again() -> None:
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        with raises_usage_error("out.in_use", "contraport train", os.getpid()):
            train(**{**settings, "objective": StubObjective(), mode: True})
        assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
        recorded_pids.append(json.loads(as_run_folder(run).lock_path.read_text())["pid"])

    train(**settings, objective=CallbackObjective(train_again), log_every=1)
    assert recorded_pids == [os.getpid()]
    assert [row["step"] for row in run.metrics_rows()] == [1, 2, 3, 4]
    assert not as_run_folder(run).lock_path.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken"), SystemExit(3)])
def test_failed_training_releases_lock(settings: dict[str, Any], error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises((KeyboardInterrupt, RuntimeError, SystemExit)):
        train(**settings, objective=CallbackObjective(fail))
    assert Run(settings["out"]).path.exists()
    assert not as_run_folder(settings["out"]).lock_path.exists()


def test_rejected_folder_is_not_locked(settings: dict[str, Any]) -> None:
    settings["out"].mkdir()
    (settings["out"] / "thesis.tex").write_text("years of work")
    with raises_usage_error("out.not_a_run"):
        train(**settings, overwrite=True)
    assert [path.name for path in settings["out"].iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pid": 2**22 + 1}, id="no such process"),
        pytest.param({"started": "1"}, id="later process with the same number"),
    ],
)
def test_lock_of_ended_process_on_this_machine_is_taken_over(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    run = train(**settings)
    write_foreign_lock(run, **changes)
    train(data=settings["data"], out=run.path, resume=True, epochs=3, progress=False)
    assert [row["epoch"] for row in run.metrics_rows()] == [1, 2, 3]
    assert not as_run_folder(run).lock_path.exists()
    assert not list(run.path.rglob(".*"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"machine": "another", "host": "far", "pid": 1}, id="another machine"),
        pytest.param({"machine": None}, id="unknown machine"),
        pytest.param(None, id="truncated lock"),
    ],
)
def test_lock_of_other_machine_expires_without_heartbeat(
    settings: dict[str, Any], changes: dict[str, Any] | None
) -> None:
    run = train(**settings)
    if changes is None:
        as_run_folder(run).lock_path.write_text('{"host": "fa')
    else:
        write_foreign_lock(run, **changes)
    resume_options = {"data": settings["data"], "out": run.path, "resume": True, "epochs": 3, "progress": False}
    with raises_usage_error("out.in_use", "contraport train", "5 minutes"):
        train(**resume_options)
    stale_time = time.time() - locks.STALE_SECONDS - 60
    os.utime(as_run_folder(run).lock_path, (stale_time, stale_time))
    train(**resume_options)
    assert not as_run_folder(run).lock_path.exists()


def test_training_touches_lock_regularly(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.01)
    run = Run(settings["out"])

    def wait() -> None:
        os.utime(as_run_folder(run).lock_path, (0, 0))
        end = time.monotonic() + TIMEOUT
        while as_run_folder(run).lock_path.stat().st_mtime == 0:
            assert time.monotonic() < end
            time.sleep(0.01)

    train(**settings, objective=CallbackObjective(wait))


def test_lock_taken_over_by_another_process_is_not_removed(settings: dict[str, Any]) -> None:
    run = Run(settings["out"])
    train(**settings, objective=CallbackObjective(lambda: as_run_folder(run).lock_path.write_text("another's")))
    assert as_run_folder(run).lock_path.read_text() == "another's"


@pytest.mark.parametrize("kind", ["pipe", "folder", "broken link"])
@pytest.mark.parametrize("mode", ["resume", "overwrite"])
def test_rejects_lock_that_is_not_a_file(settings: dict[str, Any], kind: str, mode: str) -> None:
    run = train(**settings)
    match kind:
        case "pipe":
            os.mkfifo(as_run_folder(run).lock_path)
        case "folder":
            as_run_folder(run).lock_path.mkdir()
        case _:
            as_run_folder(run).lock_path.symlink_to("nowhere")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with raises_usage_error("*", "lock.json") as caught:
        train(**{**settings, mode: True})
    assert caught.value.code.endswith({"pipe": ".not_a_file", "folder": ".is_folder"}.get(kind, ".broken_link"))
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
