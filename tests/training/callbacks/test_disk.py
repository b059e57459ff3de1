"""Full disks and unwritable folders: one-line errors, and intact saved files."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.errors import raises_usage_error

from contraport.cli import main
from contraport.runs import Run, WritableRun, as_run_folder
from contraport.training import train
from contraport.training.callbacks import checkpoints

from ..conftest import StubObjective
from ..test_train import are_equal_states, get_model_state


def raise_disk_full(*args: Any, **kwargs: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def raise_disk_full_at(call: int, function: Any) -> Any:
    """Wrap a function so that this call raises the error of a full disk."""
    calls = 0

    def count_and_call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return raise_disk_full() if calls == call else function(*args, **kwargs)

    return count_and_call


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        pytest.param(torch, "save", 2, id="a checkpoint"),
        pytest.param(os, "fsync", 7, id="a checkpoint, late"),
        pytest.param(WritableRun, "append_metrics", 3, id="a row"),
        pytest.param(os, "replace", 5, id="the checksum of a checkpoint"),
        pytest.param(os, "replace", 11, id="the model"),
    ],
)
def test_reports_a_full_disk(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int
) -> None:
    settings["log_every"] = 1
    uninterrupted = train(**{**settings, "out": settings["out"].with_name("whole")}, objective=StubObjective())
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raise_disk_full_at(call, getattr(owner, name)))
        with raises_usage_error("out.not_writable", "(resume=True, out="):
            train(**settings, objective=StubObjective())
    run = Run(settings["out"])
    assert torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)["step"] >= 2
    assert not list(run.path.rglob(".*"))  # unfinished files are removed
    resumed = train(out=run.path, resume=True, data=settings["data"], objective=StubObjective(), progress=False)
    assert are_equal_states(get_model_state(resumed), get_model_state(uninterrupted))
    assert [row["step"] for row in resumed.metrics_rows()] == [1, 2, 3, 4]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("file", ["metrics.jsonl", "train.log"])
def test_rejects_a_device_in_place_of_a_file(settings: dict[str, Any], file: str) -> None:
    run = train(**settings, objective=StubObjective())
    (run.path / file).unlink()
    (run.path / file).symlink_to("/dev/full")
    with raises_usage_error("out.not_a_file", file):
        train(out=run.path, resume=True, epochs=3, data=settings["data"], objective=StubObjective(), progress=False)
    assert torch.load(as_run_folder(run).checkpoints / "last.ckpt", weights_only=True)["step"] >= 4


def test_reports_a_folder_that_cannot_be_created(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with raises_usage_error("out.not_a_folder", tmp_path / "file"):
        train(**{**settings, "out": tmp_path / "file" / "run"})


def test_command_reports_a_full_disk_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch, "save", raise_disk_full)
    out = str(tmp_path / "run")
    status = main(
        ["train", "--data", "digits", "--encoder", "mlp", "--epochs", "1", "--progress", "false", "--out", out]
    )
    assert status == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "No space left on device" in error
    assert "--resume" not in error  # there is no checkpoint to resume from


def test_full_disk_is_reported_for_errors_of_torch() -> None:
    class LimitedFile(io.BytesIO):
        def write(self, data: Any) -> int:
            return raise_disk_full() if self.tell() + len(data) > 10_000 else super().write(data)

    with pytest.raises(OSError, match="No space left on device"):
        checkpoints._save_or_raise_os_error({"weights": torch.zeros(100_000)}, LimitedFile())
