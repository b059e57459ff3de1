import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.errors import raises_usage_error

from contraport._utils.files import atomic_write, write_json, write_npz, write_text
from contraport.runs import Run, WritableRun
from contraport.training.config import Settings


def test_notebook_repr_shows_main_and_non_default_settings(tmp_path: Path) -> None:
    config = Settings(data="digits", batch_size=64).to_config()
    html = WritableRun.create(tmp_path, config)._repr_html_()
    assert [name for name in config if f">{name}</th>" in html] == ["data", "objective", "epochs", "batch_size"]
    assert ">nt-xent</td>" in html
    other = WritableRun.create(tmp_path, config | {"batch_size": 256, "optimizer": "sgd"}, overwrite=True)._repr_html_()
    assert [name for name in config if f">{name}</th>" in other] == [
        "data",
        "objective",
        "epochs",
        "batch_size",
        "optimizer",
    ]


def test_settings_are_read_again_only_if_the_file_changed(tmp_path: Path) -> None:
    run = WritableRun.create(tmp_path, Settings(data="digits", columns={"labels": "kind"}).to_config())
    first = run.settings()
    assert run.settings() is first
    config = run.config()
    config["columns"]["labels"] = "other"
    assert run.config()["columns"] == run.settings().columns == {"labels": "kind"}
    write_text(run.config_path, yaml.safe_dump(config))
    assert run.settings().columns == {"labels": "other"}


def test_metrics_are_read_in_order(run: WritableRun) -> None:
    for step in range(3):
        run.append_metrics({"step": step, "loss": 1.5 - step})
    assert run.metrics_rows() == [{"step": step, "loss": 1.5 - step} for step in range(3)]
    run.replace_metrics(run.metrics_rows()[:1])
    assert run.metrics_rows() == [{"step": 0, "loss": 1.5}]


def test_metrics_ignore_a_truncated_last_line(run: WritableRun) -> None:
    run.metrics_path.write_text('{"step": 1}\n{"st')
    assert run.metrics_rows() == [{"step": 1}]


@pytest.mark.parametrize("text", ['{"step": 1\n{"step": 2}\n', "[1]\n", "\x00\x01\n"])
def test_rejects_corrupt_metrics(run: WritableRun, text: str) -> None:
    run.metrics_path.write_text(text)
    with raises_usage_error("run.corrupt", "metrics.jsonl", "line 1"):
        run.metrics_rows()


def test_missing_files_name_the_command_that_writes_them(run: WritableRun) -> None:
    with raises_usage_error("run.missing_file", "contraport evaluate"):
        run.evaluation()
    with raises_usage_error("run.missing_file", "contraport evaluate"):
        run.page_arrays()
    with raises_usage_error("run.missing_file", "contraport train --resume --out"):
        run.model()


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [1\n", ""])
def test_rejects_a_corrupt_config(run: WritableRun, text: str) -> None:
    run.config_path.write_text(text)
    with raises_usage_error("run.corrupt", "config.yaml"):
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
def test_rejects_a_corrupt_evaluation(run: WritableRun, text: str) -> None:
    run.evaluation_path.write_text(text)
    with raises_usage_error("run.corrupt", "evaluation.json"):
        run.evaluation()


@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\x03\x04 torn"])
def test_rejects_corrupt_samples(run: WritableRun, content: bytes) -> None:
    run.samples_path.write_bytes(content)
    with raises_usage_error("run.corrupt", "samples.npz"):
        run.page_arrays()


def test_rejects_pickled_samples(run: WritableRun) -> None:
    np.savez(run.samples_path, points=np.array([{"code": "runs"}], dtype=object))
    with raises_usage_error("run.corrupt", "samples.npz"):
        run.page_arrays()


def test_rejects_a_corrupt_model_of_a_run(run: WritableRun) -> None:
    run.model_path.mkdir()
    (run.model_path / "config.json").write_text("{")
    with raises_usage_error("model.*", "config.json"):
        run.model()


def test_arrays_and_text_round_trip(run: WritableRun) -> None:
    write_npz(run.samples_path, {"points": np.eye(2), "class_names": np.array(["a", "ü"])})
    samples = run.page_arrays()
    assert np.array_equal(samples["points"], np.eye(2))
    assert samples["class_names"].tolist() == ["a", "ü"]
    write_json(run.evaluation_path, {"data": "ünï", "rows": {"raw": {"knn": 0.5}}})
    assert run.evaluation()["data"] == "ünï"
    assert json.loads(run.evaluation_path.read_text("utf-8")) == run.evaluation()


def test_config_keeps_unicode_and_order(tmp_path: Path) -> None:
    run = WritableRun.create(tmp_path / "run", {"out": "läufe", "data": None, "epochs": 2})
    assert list(run.config()) == ["out", "data", "epochs"]
    assert "läufe" in run.config_path.read_text("utf-8")
    assert yaml.safe_load(run.config_path.read_text("utf-8"))["data"] is None


def test_failed_write_leaves_only_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "value.txt"
    write_text(path, "old")

    def fail() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_deprecated_method_still_works_with_a_warning(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with pytest.warns(FutureWarning, match="pair_scores"):
        assert run.pairs == run.pair_scores  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        run.no_such_method  # noqa: B018


def test_public_names_of_a_run() -> None:
    public = {name for name in dir(Run("runs/none")) if not name.startswith("_")} - {"metrics", "pairs"}
    assert public == {
        "config", "encode", "encoder", "evaluation", "metrics_rows", "model", "name", "pair_scores", "path",
        "resume_command", "settings", "view_scores",
    }  # fmt: skip


def test_repr_states_objective_data_and_state(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    assert repr(Run(folder)) == f"Run({str(folder)!r}, missing)"
    folder.mkdir()
    assert repr(Run(folder)) == f"Run({str(folder)!r}, not a run folder)"
    folder.rmdir()
    run = WritableRun.create(folder, Settings(data="digits", objective="gca-uot", epochs=3).to_config())
    assert repr(Run(folder)) == f"Run({str(folder)!r}, gca-uot on digits, 3 epochs, not complete)"
    run.model_path.mkdir()
    assert repr(Run(folder)) == f"Run({str(folder)!r}, gca-uot on digits, 3 epochs, trained)"
    run.config_path.write_text("- a")
    assert repr(Run(folder)) == f"Run({str(folder)!r}, unreadable)"
