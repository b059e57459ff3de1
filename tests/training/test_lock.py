"""Two trainings never work in one run folder, and none is kept out by one that is gone."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from torch import Tensor

from contraport._utils import locks
from contraport.errors import UsageError
from contraport.runs import Run
from contraport.training import train

from .conftest import Pull

USER = r"out: .*run is in use by contraport train, process \d+ on"
HELD = USER + r" .+ since \d{4}-\d\d-\d\d [\d:+]+; wait for its end, or stop it\."


class Meets(Pull):
    """An objective that does something at its third step."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def forward(self, z0: Tensor, z1: Tensor) -> Tensor:
        if self.calls == 2:
            self.what()
        return super().forward(z0, z1)


Meets.__name__ = "Pull"


def left_behind(run: Run, **changes: Any) -> None:
    """Leave the lock of another process."""
    run.lock_path.write_text(json.dumps({**locks._this_process(), **changes}))


@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_a_second_training_is_refused_and_changes_nothing(settings: dict[str, Any], how: str) -> None:
    run = Run(settings["out"])
    seen = []

    def second() -> None:
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        with pytest.raises(UsageError, match=HELD + r"(\nMore: contraport docs .+)?$"):
            train(**{**settings, "objective": Pull(), how: True})
        assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
        seen.append(json.loads(run.lock_path.read_text())["pid"])

    train(**settings, objective=Meets(second), log_every=1)
    assert seen == [os.getpid()]
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4]
    assert not run.lock_path.exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken"), SystemExit(3)])
def test_a_training_that_fails_leaves_no_lock(settings: dict[str, Any], error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises((KeyboardInterrupt, RuntimeError, SystemExit)):
        train(**settings, objective=Meets(fail))
    assert Run(settings["out"]).path.exists()
    assert not Run(settings["out"]).lock_path.exists()


def test_a_refused_folder_is_not_locked(settings: dict[str, Any]) -> None:
    settings["out"].mkdir()
    (settings["out"] / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is no run"):
        train(**settings, overwrite=True)
    assert [path.name for path in settings["out"].iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"pid": 2**22 + 1}, id="no such process"),
        pytest.param({"started": "1"}, id="a later process of the same number"),
    ],
)
def test_a_lock_of_this_machine_whose_process_is_gone(settings: dict[str, Any], changes: dict[str, Any]) -> None:
    run = train(**settings)
    left_behind(run, **changes)
    train(data=settings["data"], out=run.path, resume=True, epochs=3, progress=False)
    assert [row["epoch"] for row in run.metrics()] == [1, 2, 3]
    assert not run.lock_path.exists()
    assert not list(run.path.rglob(".*"))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"machine": "another", "host": "far", "pid": 1}, id="another machine"),
        pytest.param({"machine": None}, id="a machine that does not tell"),
        pytest.param(None, id="half a lock"),
    ],
)
def test_a_lock_that_only_its_machine_can_judge_ends_with_its_signs_of_life(
    settings: dict[str, Any], changes: dict[str, Any] | None
) -> None:
    run = train(**settings)
    if changes is None:
        run.lock_path.write_text('{"host": "fa')
    else:
        left_behind(run, **changes)
    go_on = {"data": settings["data"], "out": run.path, "resume": True, "epochs": 3, "progress": False}
    with pytest.raises(
        UsageError, match=r"is in use by contraport train, .* its lock ends 5 minutes after its last sign of life"
    ):
        train(**go_on)
    then = time.time() - locks.STALE - 60
    os.utime(run.lock_path, (then, then))
    train(**go_on)
    assert not run.lock_path.exists()


def test_a_training_gives_signs_of_life(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.01)
    run = Run(settings["out"])

    def wait() -> None:
        os.utime(run.lock_path, (0, 0))
        end = time.monotonic() + 60
        while run.lock_path.stat().st_mtime == 0:
            assert time.monotonic() < end
            time.sleep(0.01)

    train(**settings, objective=Meets(wait))


def test_a_lock_that_another_took_over_is_left_to_it(settings: dict[str, Any]) -> None:
    run = Run(settings["out"])
    train(**settings, objective=Meets(lambda: run.lock_path.write_text("another's")))
    assert run.lock_path.read_text() == "another's"


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to nothing"])
@pytest.mark.parametrize("how", ["resume", "overwrite"])
def test_what_is_no_file_in_place_of_the_lock_is_told_and_not_waited_for(
    settings: dict[str, Any], kind: str, how: str
) -> None:
    run = train(**settings)
    match kind:
        case "pipe":
            os.mkfifo(run.lock_path)
        case "folder":
            run.lock_path.mkdir()
        case _:
            run.lock_path.symlink_to("nowhere")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UsageError, match=r"lock\.json is (no regular file|a folder, no file|a link to nothing)"):
        train(**{**settings, how: True})
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
