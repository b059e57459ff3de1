"""Replacement of runs: the old run is kept until the new one has a checkpoint."""

from __future__ import annotations

import io
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contraport.runs import Run, as_run_folder
from contraport.training import train
from tests.errors import raises_usage_error

from .conftest import StubObjective


def read_files(run: Run) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.fixture
def ragged_archive(tmp_path: Path) -> Path:
    """Archive of arrays, where the first ones are equal in shape and later ones are not."""
    path = tmp_path / "ragged.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(40):
            file = io.BytesIO()
            np.save(file, np.zeros(6 if number < 30 else 5, np.float32))
            member = tarfile.TarInfo(f"{number:03d}.npy")
            member.size = file.tell()
            tar.addfile(member, io.BytesIO(file.getvalue()))
    return path


def test_invalid_data_leave_the_old_run(settings: dict[str, Any], ragged_archive: Path) -> None:
    run = train(**settings)
    before = read_files(run)
    with raises_usage_error("*", "(6,)"):
        train(
            **{**settings, "data": ragged_archive, "batch_size": 16}, test_fraction=0.1, num_workers=0, overwrite=True
        )
    assert read_files(run) == before
    assert not as_run_folder(run).backup.path.exists()


def test_failure_in_the_first_epoch_restores_the_old_run(settings: dict[str, Any]) -> None:
    run = train(**settings)
    before = read_files(run)
    for at in (1, 2):
        with pytest.raises(RuntimeError, match="broken"):
            train(**settings, overwrite=True, objective=StubObjective(at=at, raising=RuntimeError("broken")))
        assert read_files(run) == before
    with pytest.raises(RuntimeError, match="broken"):
        train(**settings, overwrite=True, objective=StubObjective(at=3, raising=RuntimeError("broken")))
    assert [row["epoch"] for row in run.metrics_rows()] == [1]
    assert not as_run_folder(run).backup.path.exists()


@pytest.mark.parametrize("mode", ["resume", "overwrite"])
@pytest.mark.parametrize(
    ("failure", "error"),
    [
        pytest.param({"raising": SystemExit(3)}, SystemExit, id="stopped"),
        pytest.param({"factor": math.nan}, FloatingPointError, id="not finite"),
    ],
)
def test_stopped_replacement_keeps_the_old_run_as_a_backup(
    settings: dict[str, Any], failure: dict[str, Any], error: type[BaseException], mode: str
) -> None:
    run = train(**settings)
    before = read_files(run)
    with pytest.raises(error):
        train(**settings, overwrite=True, objective=StubObjective(at=2, **failure))
    backup = {
        path.relative_to(as_run_folder(run).backup.path): text
        for path, text in read_files(Run(as_run_folder(run).backup.path)).items()
    }
    assert backup == {path.relative_to(run.path): text for path, text in before.items()}
    assert as_run_folder(run).nonfinite_path.exists() == (error is FloatingPointError)
    with pytest.raises(RuntimeError, match="broken"):
        train(**{**settings, mode: True}, objective=StubObjective(at=2, raising=RuntimeError("broken")))
    assert read_files(run) == before
    with pytest.raises(error):
        train(**settings, overwrite=True, objective=StubObjective(at=2, **failure))
    train(**{**settings, mode: True}, objective=StubObjective())
    assert "objective: <StubObjective>" in as_run_folder(run).config_path.read_text()
    assert [row["epoch"] for row in run.metrics_rows()] == [1, 2]
    assert not list(run.path.rglob(".*"))


def test_names_the_backup_of_the_old_run(settings: dict[str, Any]) -> None:
    run = train(**settings)
    assert ".replaced" not in as_run_folder(run).log_path.read_text()
    train(**settings, overwrite=True)
    assert str(as_run_folder(run).backup.path) in as_run_folder(run).log_path.read_text()
