import json
import os
from pathlib import Path

import numpy as np
import pytest
import yaml

from contraport.errors import UsageError, check_regular
from contraport.files import replacing, write_arrays, write_json, write_text
from contraport.runs import Run
from contraport.verbs.train import Settings


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


def test_a_notebook_shows_the_main_settings_and_those_that_are_no_defaults(tmp_path: Path) -> None:
    kept = Settings(data="digits", batch_size=64).kept()
    shown = Run.create(tmp_path, kept)._repr_html_()
    assert [name for name in kept if f">{name}</th>" in shown] == ["data", "objective", "epochs", "batch_size"]
    assert ">nt-xent</td>" in shown
    other = Run.create(tmp_path, kept | {"batch_size": 256, "opt": "sgd"}, overwrite=True)._repr_html_()
    assert [name for name in kept if f">{name}</th>" in other] == ["data", "objective", "epochs", "batch_size", "opt"]


def test_metrics_come_back_in_order(run: Run) -> None:
    for step in range(3):
        run.append_metrics({"step": step, "loss": 1.5 - step})
    assert run.metrics() == [{"step": step, "loss": 1.5 - step} for step in range(3)]
    run.write_metrics(run.metrics()[:1])
    assert run.metrics() == [{"step": 0, "loss": 1.5}]


def test_metrics_leave_out_a_last_line_that_was_cut_off(run: Run) -> None:
    run.metrics_path.write_text('{"step": 1}\n{"st')
    assert run.metrics() == [{"step": 1}]


@pytest.mark.parametrize("text", ['{"step": 1\n{"step": 2}\n', "[1]\n", "\x00\x01\n"])
def test_corrupt_metrics_are_told(run: Run, text: str) -> None:
    run.metrics_path.write_text(text)
    with pytest.raises(UsageError, match=r"metrics\.jsonl is corrupt: line 1"):
        run.metrics()


def test_no_folder_and_no_run_are_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such folder"):
        Run(tmp_path / "absent").config()
    for read in (Run.config, Run.metrics, Run.model, Run.evaluation, Run.samples):
        with pytest.raises(UsageError, match=r"is no run: it has no config\.yaml"):
            read(Run(tmp_path))


def test_missing_parts_name_the_remedy(run: Run) -> None:
    with pytest.raises(UsageError, match="contraport evaluate"):
        run.evaluation()
    with pytest.raises(UsageError, match="contraport evaluate"):
        run.samples()
    with pytest.raises(UsageError, match="resume"):
        run.model()


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", ""])
def test_corrupt_config_is_told(run: Run, text: str) -> None:
    run.config_path.write_text(text)
    with pytest.raises(UsageError, match=r"config\.yaml is corrupt"):
        run.config()


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"rows": 3}',
        '{"seconds": 1}',
        '{"rows": {}, "intervals": {"trained": {"knn": 0.5}}}',
        '{"rows": {}, "differences": {"raw": {"knn": {"low": "none"}}}}',
    ],
)
def test_corrupt_evaluation_is_told(run: Run, text: str) -> None:
    run.evaluation_path.write_text(text)
    with pytest.raises(UsageError, match=r"evaluation\.json is corrupt"):
        run.evaluation()


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 torn"])
def test_corrupt_samples_are_told(run: Run, content: bytes) -> None:
    run.samples_path.write_bytes(content)
    with pytest.raises(UsageError, match=r"samples\.npz is corrupt"):
        run.samples()


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": np.arange(2)},
        {"neighbors": np.array([[1], [3], [0]])},
        {"neighbors": np.array([[1], [-1], [0]])},
        {"labels": np.array([0, 1, 2])},
        {"plan": np.eye(3), "target": np.eye(2)},
        {"plan_epochs": np.arange(2), "plans": np.ones((3, 2, 2))},
    ],
)
def test_samples_that_do_not_go_together_are_told(run: Run, changed: dict[str, np.ndarray]) -> None:
    whole = {"points": np.eye(3), "labels": np.array([0, 1, 1]), "class_names": np.array(["a", "b"])}
    write_arrays(run.samples_path, whole | {"neighbors": np.array([[1], [2], [0]])})
    assert set(run.samples()) == {*whole, "neighbors"}
    write_arrays(run.samples_path, whole | changed)
    with pytest.raises(UsageError, match=r"samples\.npz is corrupt: '"):
        run.samples()


def test_pickled_samples_are_refused(run: Run) -> None:
    np.savez(run.samples_path, points=np.array([{"code": "runs"}], dtype=object))
    with pytest.raises(UsageError, match=r"samples\.npz is corrupt"):
        run.samples()


def test_corrupt_model_is_told(run: Run) -> None:
    run.model_path.mkdir()
    (run.model_path / "config.json").write_text("{")
    with pytest.raises(UsageError, match=r"model.*config\.json"):
        run.model()


def test_arrays_and_text_come_back(run: Run) -> None:
    write_arrays(run.samples_path, {"points": np.eye(2), "class_names": np.array(["a", "ü"])})
    samples = run.samples()
    assert np.array_equal(samples["points"], np.eye(2))
    assert samples["class_names"].tolist() == ["a", "ü"]
    write_json(run.evaluation_path, {"data": "ünï", "rows": {"raw": {"knn": 0.5}}})
    assert run.evaluation()["data"] == "ünï"
    assert json.loads(run.evaluation_path.read_text("utf-8")) == run.evaluation()


def test_config_keeps_unicode_and_order(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", {"out": "läufe", "data": None, "epochs": 2})
    assert list(run.config()) == ["out", "data", "epochs"]
    assert "läufe" in run.config_path.read_text("utf-8")
    assert yaml.safe_load(run.config_path.read_text("utf-8"))["data"] is None


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "value.txt"
    write_text(path, "old")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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
        check_regular(argument, path)

    monkeypatch.setattr("contraport.runs.folder.check_regular", gone)
    assert run.metrics() == [{"step": 1}]


def test_a_link_that_leads_nowhere_is_no_obstacle(run: Run) -> None:
    run.write_metrics([{"step": 1}])
    (run.path / "loop").symlink_to(run.path / "loop")
    assert run.metrics() == [{"step": 1}]
