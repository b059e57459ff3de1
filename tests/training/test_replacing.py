"""A run that another one replaces is kept until the other has a checkpoint."""

from __future__ import annotations

import io
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contraport.errors import UsageError
from contraport.runs import Run, as_run_folder
from contraport.training import train

from .conftest import Pull


def content(run: Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.fixture
def ragged(tmp_path: Path) -> Path:
    """Data of which the first arrays are equal in shape, and a later one is not."""
    path = tmp_path / "ragged.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(40):
            file = io.BytesIO()
            np.save(file, np.zeros(6 if number < 30 else 5, np.float32))
            member = tarfile.TarInfo(f"{number:03d}.npy")
            member.size = file.tell()
            tar.addfile(member, io.BytesIO(file.getvalue()))
    return path


def test_invalid_data_leave_the_old_run(settings: dict[str, Any], ragged: Path) -> None:
    run = train(**settings)
    before = content(run)
    with pytest.raises(UsageError, match=r"must have shape \(6,\)"):
        train(**{**settings, "data": ragged, "batch_size": 16}, test_fraction=0.1, num_workers=0, overwrite=True)
    assert content(run) == before
    assert not as_run_folder(run).backup.path.exists()


def test_failure_in_the_first_epoch_restores_the_old_run(settings: dict[str, Any]) -> None:
    run = train(**settings)
    before = content(run)
    for at in (1, 2):
        with pytest.raises(RuntimeError, match="broken"):
            train(**settings, overwrite=True, objective=Pull(at=at, raising=RuntimeError("broken")))
        assert content(run) == before
    with pytest.raises(RuntimeError, match="broken"):
        train(**settings, overwrite=True, objective=Pull(at=3, raising=RuntimeError("broken")))
    assert [row["epoch"] for row in run.metrics_rows()] == [1]
    assert not as_run_folder(run).backup.path.exists()


@pytest.mark.parametrize("again", ["resume", "overwrite"])
@pytest.mark.parametrize(
    ("settled", "error"),
    [
        pytest.param({"raising": SystemExit(3)}, SystemExit, id="stopped"),
        pytest.param({"factor": math.nan}, FloatingPointError, id="not finite"),
    ],
)
def test_stopped_replacement_keeps_the_old_run_as_a_backup(
    settings: dict[str, Any], settled: dict[str, Any], error: type[BaseException], again: str
) -> None:
    run = train(**settings)
    before = content(run)
    with pytest.raises(error):
        train(**settings, overwrite=True, objective=Pull(at=2, **settled))
    kept = {
        path.relative_to(as_run_folder(run).backup.path): text
        for path, text in content(Run(as_run_folder(run).backup.path)).items()
    }
    assert kept == {path.relative_to(run.path): text for path, text in before.items()}
    assert as_run_folder(run).nonfinite_path.exists() == (error is FloatingPointError)
    with pytest.raises(RuntimeError, match="broken"):
        train(**{**settings, again: True}, objective=Pull(at=2, raising=RuntimeError("broken")))
    assert content(run) == before
    with pytest.raises(error):
        train(**settings, overwrite=True, objective=Pull(at=2, **settled))
    train(**{**settings, again: True}, objective=Pull())
    assert "objective: <Pull>" in as_run_folder(run).config_path.read_text()
    assert [row["epoch"] for row in run.metrics_rows()] == [1, 2]
    assert not list(run.path.rglob(".*"))


def test_names_the_backup_of_the_old_run(settings: dict[str, Any]) -> None:
    run = train(**settings)
    assert ".replaced" not in as_run_folder(run).log_path.read_text()
    train(**settings, overwrite=True)
    assert str(as_run_folder(run).backup.path) in as_run_folder(run).log_path.read_text()
