import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.errors import raises_usage_error

from contraport._utils.files import write_json
from contraport.runs import WritableRun


def test_overwrite_replaces_a_run_and_leaves_other_files(run: WritableRun) -> None:
    run.append_metrics({"step": 1})
    write_json(run.evaluation_path, {"rows": {}})
    run.model_path.mkdir()
    notes = run.path / "notes.txt"
    notes.write_text("mine")
    WritableRun.create(run.path, {"data": "other"}, overwrite=True)
    assert run.config() == {"data": "other"}
    assert notes.read_text() == "mine"
    run.backup.delete()
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "config.yaml", "notes.txt"]


def fill_run(run: WritableRun) -> dict[str, bytes]:
    """Fill a run folder and return the content of its files."""
    run.append_metrics({"step": 1})
    run.last_checkpoint.write_bytes(b"weights")
    run.model_path.mkdir()
    (run.model_path / "config.json").write_text("{}")
    run.log_path.write_text("log")
    return read_files(run)


def read_files(run: WritableRun) -> dict[str, bytes]:
    """Return the content of each file, except unfinished writes of the configuration."""
    files = [path for path in run.path.rglob("*") if path.is_file() and not path.name.startswith(".config-")]
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files}


def test_replaced_run_can_be_restored(run: WritableRun) -> None:
    before = fill_run(run)
    new = WritableRun.create(run.path, {"data": "other"}, overwrite=True)
    new.append_metrics({"step": 7})
    new.evaluation_path.write_text("{}")
    run.backup.restore_unless_checkpointed()
    assert read_files(run) == before
    assert not run.backup.path.exists()


def test_replaced_run_is_not_restored_over_a_checkpoint(run: WritableRun) -> None:
    fill_run(run)
    new = WritableRun.create(run.path, {"data": "other"}, overwrite=True)
    new.last_checkpoint.write_bytes(b"new weights")
    before = read_files(run)
    del before[".replaced/config.yaml"]
    run.backup.restore_unless_checkpointed()
    assert read_files(run) == {name: text for name, text in before.items() if not name.startswith(".replaced")}


class Killed(BaseException):
    """Simulated kill of the process."""


def kill_after_file_operations(monkeypatch: pytest.MonkeyPatch, calls: int) -> Callable[[], int]:
    """Raise `Killed` after this many file operations; return a function that counts those left."""
    left = calls

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **settings: Any) -> Any:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return function(*args, **settings)

        return call

    for owner, name in [
        *((os, name) for name in ("rename", "replace", "unlink", "rmdir", "mkdir")),
        *((Path, name) for name in ("rename", "unlink", "mkdir")),
        (shutil, "copyfile"),
    ]:
        monkeypatch.setattr(owner, name, wrap(getattr(owner, name)))
    return lambda: left


@pytest.mark.parametrize("last", ["put back", "overwrite"])
def test_kill_during_replacement_loses_no_run(tmp_path: Path, last: str) -> None:
    for calls in itertools.count():
        run = WritableRun.create(tmp_path / str(calls), {"data": "digits"})
        before = fill_run(run)
        with pytest.MonkeyPatch.context() as patch:
            left = kill_after_file_operations(patch, calls)
            with suppress(Killed):
                WritableRun.create(run.path, {"data": "other"}, overwrite=True)
                run.backup.restore_unless_checkpointed()
            completed = left() > 0
        assert run.config()["data"] in ("digits", "other")
        if last == "overwrite":
            WritableRun.create(run.path, {"data": "a third"}, overwrite=True)
        run.backup.restore_unless_checkpointed()
        assert read_files(run) == before, calls
        assert not run.backup.path.exists(), calls
        if completed:
            break
    assert calls > 20


def test_kill_during_deletion_of_the_backup_keeps_the_new_run(tmp_path: Path) -> None:
    for calls in itertools.count():
        run = WritableRun.create(tmp_path / str(calls), {"data": "digits"})
        fill_run(run)
        WritableRun.create(run.path, {"data": "other"}, overwrite=True)
        run.last_checkpoint.write_bytes(b"new weights")
        with pytest.MonkeyPatch.context() as patch:
            left = kill_after_file_operations(patch, calls)
            with suppress(Killed):
                run.backup.delete()
            completed = left() > 0
        run.backup.undo_or_delete_stale_backup()
        assert sorted(read_files(run)) == ["checkpoints/last.ckpt", "config.yaml"]
        assert run.last_checkpoint.read_bytes() == b"new weights"
        if completed:
            break
    assert calls > 5


@pytest.mark.parametrize("name", ["train.log", "checkpoints"])
def test_overwrite_rejects_foreign_files_and_folders(run: WritableRun, name: str) -> None:
    run.append_metrics({"step": 1})
    run.checkpoints.rmdir()
    if name == "train.log":
        run.log_path.mkdir()
    else:
        run.checkpoints.write_text("mine")
    with raises_usage_error("out.foreign_file", name):
        WritableRun.create(run.path, {}, overwrite=True)
    assert run.metrics_rows() == [{"step": 1}]
