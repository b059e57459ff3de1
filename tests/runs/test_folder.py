import os
from pathlib import Path

import pytest
from tests.errors import raises_usage_error

from contraport.errors import check_regular_file
from contraport.runs import WritableRun
from contraport.runs.writable_run import as_different_run_folders


def test_create_writes_config_and_checkpoint_folder(run: WritableRun) -> None:
    assert run.config() == {"data": "digits", "epochs": 3}
    assert run.checkpoints.is_dir()
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoints", "config.yaml"]


def test_create_accepts_an_empty_folder(tmp_path: Path) -> None:
    assert WritableRun.create(tmp_path, {"data": "digits"}).config() == {"data": "digits"}


def test_create_accepts_a_folder_with_leftovers_of_a_killed_process(tmp_path: Path) -> None:
    run = WritableRun(tmp_path)
    run.checkpoints.mkdir()
    run.lock_path.write_text("{}")
    (tmp_path / f".config-{'0a' * 16}.yaml").write_text("data: dig")
    (tmp_path / f".model-{'0a' * 16}").mkdir()
    assert WritableRun.create(tmp_path, {"data": "digits"}).config() == {"data": "digits"}


def test_create_rejects_a_checkpoint_without_config(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").write_text("weights")
    with raises_usage_error("out.exists"):
        WritableRun.create(tmp_path, {"data": "digits"})
    assert not (tmp_path / "config.yaml").exists()


def test_create_rejects_an_existing_run(run: WritableRun) -> None:
    with raises_usage_error("out.exists", "overwrite=True"):
        WritableRun.create(run.path, {"data": "other"})
    assert run.config()["data"] == "digits"


def test_overwrite_rejects_folders_without_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with raises_usage_error("out.not_a_run"):
        WritableRun.create(tmp_path, {}, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_create_rejects_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with raises_usage_error("out.not_a_folder"):
        WritableRun.create(path, {}, overwrite=True)
    with raises_usage_error("out.not_a_folder", path):
        WritableRun.create(path / "run", {})


def test_rejects_missing_folders_and_folders_without_a_run(tmp_path: Path) -> None:
    with raises_usage_error("run.not_found"):
        WritableRun(tmp_path / "absent").config()
    for read in (
        WritableRun.config,
        WritableRun.metrics_rows,
        WritableRun.model,
        WritableRun.evaluation,
        WritableRun.page_arrays,
    ):
        with raises_usage_error("run.not_a_run", "config.yaml"):
            read(WritableRun(tmp_path))


def test_rejects_a_folder_in_place_of_a_file(run: WritableRun) -> None:
    (run.model_path / "config.json").mkdir(parents=True)
    with raises_usage_error("run.not_a_file", "config.json"):
        run.config()


@pytest.mark.parametrize("name", ["metrics.jsonl", "train.log", "model/model.safetensors"])
def test_rejects_a_pipe_without_opening_it(run: WritableRun, name: str) -> None:
    run.model_path.mkdir()
    os.mkfifo(run.path / name)
    with raises_usage_error("run.*", name):
        run.config()


def test_ignores_files_deleted_while_reading(run: WritableRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run.replace_metrics([{"step": 1}])
    temporary = run.checkpoints / ".last-0.ckpt"
    temporary.parent.mkdir(exist_ok=True)
    temporary.write_bytes(b"")

    def check_after_deletion(argument: str, path: Path) -> None:
        if path == temporary:
            temporary.unlink()
        check_regular_file(argument, path)

    monkeypatch.setattr("contraport.runs.run.check_regular_file", check_after_deletion)
    assert run.metrics_rows() == [{"step": 1}]


def test_ignores_dangling_links(run: WritableRun) -> None:
    run.replace_metrics([{"step": 1}])
    (run.path / "loop").symlink_to(run.path / "loop")
    assert run.metrics_rows() == [{"step": 1}]


@pytest.mark.parametrize("config", ["data: digits\nepochs: 3\n", "model: resnet\ndata: digits\n", "{}\n", "- 1\n"])
def test_overwrite_rejects_a_config_of_another_program(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "train.log").write_text("years of work")
    if config != "data: digits\nepochs: 3\n":
        (tmp_path / "checkpoints").mkdir()
    with raises_usage_error("*", "config.yaml"):
        WritableRun.create(tmp_path, {"data": "digits"}, overwrite=True)
    assert (tmp_path / "train.log").read_text() == "years of work"
    assert (tmp_path / "config.yaml").read_text() == config


def test_rejects_paths_that_are_not_run_folders() -> None:
    with raises_usage_error("run.type", "int"):
        as_different_run_folders("run", ["runs/a", 3])
