import os
from pathlib import Path

import pytest

from contraport.errors import UsageError, check_regular_file
from contraport.runs import Run


def test_create_lays_out_the_folder(run: Run) -> None:
    assert run.config() == {"data": "digits", "epochs": 3}
    assert run.checkpoints.is_dir()
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "config.yaml"]


def test_create_takes_an_empty_folder(tmp_path: Path) -> None:
    assert Run.create(tmp_path, {"data": "digits"}).config() == {"data": "digits"}


def test_what_a_process_leaves_that_is_killed_at_once_is_no_run(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.checkpoints.mkdir()
    run.lock_path.write_text("{}")
    (tmp_path / f".config-{'0a' * 16}.yaml").write_text("data: dig")
    assert Run.create(tmp_path, {"data": "digits"}).config() == {"data": "digits"}


def test_a_checkpoint_without_a_configuration_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("weights")
    with pytest.raises(UsageError, match="not empty"):
        Run.create(tmp_path, {"data": "digits"})
    assert not (tmp_path / "config.yaml").exists()


def test_create_refuses_a_folder_in_use_and_changes_nothing(run: Run) -> None:
    with pytest.raises(UsageError, match=r"out: .* is not empty; overwrite=True"):
        Run.create(run.path, {"data": "other"})
    assert run.config()["data"] == "digits"


def test_overwrite_never_touches_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="is no run"):
        Run.create(tmp_path, {}, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_create_refuses_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        Run.create(path, {}, overwrite=True)


def test_no_folder_and_no_run_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        Run(tmp_path / "absent").config()
    for read in (Run.config, Run.metrics, Run.model, Run.evaluation, Run.samples):
        with pytest.raises(UsageError, match=r"is no run: it has no config\.yaml"):
            read(Run(tmp_path))


def test_a_folder_in_place_of_a_file_of_the_model_is_told_before_a_training_goes_on(run: Run) -> None:
    (run.model_path / "config.json").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"config\.json is a folder, where a run has only files"):
        run.config()


@pytest.mark.parametrize("name", ["metrics.jsonl", "train.log", "model/model.safetensors"])
def test_a_pipe_among_the_files_is_told_and_not_waited_for(run: Run, name: str) -> None:
    run.model_path.mkdir()
    os.mkfifo(run.path / name)
    with pytest.raises(UsageError, match=f"run: .*{name} is no regular file"):
        run.config()


def test_a_file_that_a_training_takes_away_while_the_folder_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.write_metrics([{"step": 1}])
    passing = run.checkpoints / ".last-0.ckpt"
    passing.parent.mkdir(exist_ok=True)
    passing.write_bytes(b"")

    def gone(argument: str, path: Path) -> None:
        if path == passing:
            passing.unlink()
        check_regular_file(argument, path)

    monkeypatch.setattr("contraport.runs.run_folder.check_regular_file", gone)
    assert run.metrics() == [{"step": 1}]


def test_a_link_that_leads_nowhere_is_no_obstacle(run: Run) -> None:
    run.write_metrics([{"step": 1}])
    (run.path / "loop").symlink_to(run.path / "loop")
    assert run.metrics() == [{"step": 1}]
