"""Damaged run folders: one-line errors that name the file and the remedy, and unchanged files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from contraport import embed, evaluate, export, report, train
from contraport.encoders import Model
from contraport.errors import UsageError
from contraport.runs import Run, as_run_folder
from contraport.training import load_failed_step

from .conftest import StubObjective

UNSAFE = ("weights_only", "allow_pickle", "pickle.load", "unsafely")


@pytest.fixture(scope="module")
def evaluated_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("whole") / "run"
    train(data="digits", encoder="mlp", batch_size=600, epochs=2, keep_every=1, out=out, progress=False)
    evaluate(out, progress=False)
    return Run(out)


@pytest.fixture
def run(evaluated_run: Run, tmp_path: Path) -> Run:
    shutil.copytree(evaluated_run.path, tmp_path / "run")
    return Run(tmp_path / "run")


def assert_rejected(call: Callable[[], Any], *words: str) -> None:
    with pytest.raises(UsageError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 800
    for word in words:
        assert word in message, message
    for word in UNSAFE:
        assert word not in message, message


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def clear(path: Path) -> None:
    path.write_bytes(b"")


def write_garbage(path: Path) -> None:
    path.write_bytes(b"\x80\x02cos\nsystem\n" + bytes(range(256)))


def write_pickle(path: Path) -> None:
    torch.save({"pipeline": Path("x"), "epoch": UsageError}, path)


DAMAGES = [flip_bit, truncate, clear, write_garbage, write_pickle]


def resume_run(run: Run, **options: Any) -> Run:
    return train(resume=True, out=run.path, epochs=3, progress=False, **options)


@pytest.mark.parametrize(
    ("damage", "has_checksum"),
    [
        *((damage, True) for damage in (flip_bit, truncate)),
        *(pytest.param(damage, True, marks=pytest.mark.slow) for damage in (clear, write_garbage, write_pickle)),
        *(
            (damage, False) for damage in (truncate, clear, write_garbage, write_pickle)
        ),  # only the checksum detects a flipped bit
    ],
)
def test_rejects_a_damaged_checkpoint(run: Run, damage: Callable[[Path], None], has_checksum: bool) -> None:
    path = as_run_folder(run).checkpoints / "last.ckpt"
    damage(path)
    if not has_checksum:
        (as_run_folder(run).checkpoints / "last.ckpt.sha256").unlink()
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    assert_rejected(
        lambda: resume_run(run), "last.ckpt is corrupt", "copy epoch-0002.ckpt over last.ckpt", "overwrite=True"
    )
    assert {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()} == before
    for suffix in ("", ".sha256"):
        shutil.copy(
            as_run_folder(run).checkpoints / f"epoch-0002.ckpt{suffix}",
            as_run_folder(run).checkpoints / f"last.ckpt{suffix}",
        )
    assert [row["epoch"] for row in resume_run(run).metrics_rows()] == [1, 2, 3]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda state: [], id="a list"),
        pytest.param(lambda state: {}, id="nothing"),
        pytest.param(lambda state: {**state, "step": "4"}, id="a step in words"),
        pytest.param(lambda state: {**state, "step": -4}, id="a step before the first"),
        pytest.param(lambda state: {**state, "pipeline": {}}, id="no weights"),
        pytest.param(lambda state: {**state, "pipeline": 3}, id="a number for weights"),
        pytest.param(
            lambda state: {**state, "pipeline": {name: value[:1] for name, value in state["pipeline"].items()
                                                   if value.ndim}},
            id="other weights",
        ),
        pytest.param(lambda state: {**state, "optimizer": {}}, id="no optimizer"),
        pytest.param(lambda state: {**state, "optimizer": 3}, id="a number for an optimizer"),
        pytest.param(lambda state: {**state, "schedule": "x"}, id="a word for a schedule"),
        pytest.param(lambda state: {**state, "callbacks": {"Meter": 3}}, id="a number for a clock"),
        pytest.param(lambda state: {**state, "epoch": None}, id="no position"),
    ],
)  # fmt: skip
def test_rejects_a_checkpoint_of_another_program(run: Run, change: Callable[[Any], Any]) -> None:
    path = as_run_folder(run).checkpoints / "last.ckpt"
    torch.save(change(torch.load(path, weights_only=True)), path)
    (as_run_folder(run).checkpoints / "last.ckpt.sha256").unlink()
    assert_rejected(lambda: resume_run(run), "last.ckpt", "overwrite=True")


def test_rejects_a_checkpoint_beyond_the_requested_epochs(run: Run) -> None:
    as_run_folder(run).config_path.write_text(yaml.safe_dump({**run.config(), "epochs": 1}))
    assert_rejected(lambda: train(resume=True, out=run.path, progress=False), "last.ckpt", "at least 2", "got 1")


@pytest.mark.parametrize("damage", DAMAGES)
def test_rejects_damaged_weights(run: Run, damage: Callable[[Path], None], tmp_path: Path) -> None:
    damage(as_run_folder(run).model_path / "model.safetensors")
    for run_command in (
        lambda: Model.from_pretrained(as_run_folder(run).model_path),
        lambda: evaluate(run, progress=False),
        lambda: embed(run, out=tmp_path / "features.npz", progress=False),
        lambda: export(run, format="torchscript", out=tmp_path / "model.pt"),
    ):
        assert_rejected(run_command, "model", "model.safetensors.sha256")


def test_accepts_weights_without_a_checksum(run: Run) -> None:
    (as_run_folder(run).model_path / "model.safetensors.sha256").unlink()
    Model.from_pretrained(as_run_folder(run).model_path)


def test_checksum_of_a_saved_model_is_updated(tmp_path: Path) -> None:
    for _ in range(2):
        Model("mlp", [(4,)]).save_pretrained(tmp_path / "model")
        Model.from_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors.sha256").exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", '{"rows": 3}', '{"rows": {"raw": 3}}', '{"rows": {"raw": {"knn": "much"}}}',
     '{"rows": {}, "notes": 3}', '{"rows": {}, "data": 3}', '{"rows": {}, "test_items": "many"}', "[" * 100_000],
)  # fmt: skip
def test_rejects_a_damaged_evaluation(run: Run, text: str, tmp_path: Path) -> None:
    as_run_folder(run).evaluation_path.write_text(text)
    assert_rejected(lambda: report([run], out=tmp_path / "page.html"), "evaluation.json is corrupt", "evaluate")


@pytest.mark.parametrize("damage", DAMAGES)
def test_rejects_damaged_samples(run: Run, damage: Callable[[Path], None], tmp_path: Path) -> None:
    damage(as_run_folder(run).samples_path)
    assert_rejected(lambda: report([run], out=tmp_path / "page.html"), "samples.npz is corrupt", "evaluate")


@pytest.mark.parametrize("name", ["points", "labels", "thumbnails", "plan", "plan_items", "class_names"])
@pytest.mark.parametrize("value", [np.array([["x"]]), np.array("x"), np.zeros((1, 2, 3)), np.array([{}])])
def test_rejects_samples_of_another_type(run: Run, name: str, value: np.ndarray, tmp_path: Path) -> None:
    np.savez(as_run_folder(run).samples_path, **{**as_run_folder(run).page_arrays(), name: value})
    assert_rejected(lambda: report([run], out=tmp_path / "page.html"), "samples.npz is corrupt", "evaluate")


@pytest.mark.parametrize(
    "line", ["[1]", "3", "{", '{"loss": 1}', '{"step": "one"}', '{"step": 1, "loss": "low"}', "\x00"]
)
def test_rejects_damaged_metrics(run: Run, line: str, tmp_path: Path) -> None:
    as_run_folder(run).metrics_path.write_text(f"{line}\n" + as_run_folder(run).metrics_path.read_text())
    assert_rejected(lambda: report([run], out=tmp_path / "page.html"), "metrics.jsonl is corrupt: line 1")
    assert_rejected(lambda: resume_run(run), "metrics.jsonl is corrupt: line 1")


@pytest.mark.parametrize(
    ("key", "value"),
    [("epochs", "three"), ("epochs", None), ("seed", [1]), ("batch_size", {}), ("objective", 3), ("data", 3),
     ("objective_settings", "x"), ("columns", "x"), ("amp", "yes"), ("encoder", 3), ("encoder", [3]), ("root", 3),
     ("temperature", []), ("views", 1.5), ("logger", "tensorboard"), ("lr", "fast"), ("resume", True)],
)  # fmt: skip
def test_rejects_a_setting_of_another_type(run: Run, key: str, value: Any) -> None:
    as_run_folder(run).config_path.write_text(yaml.safe_dump({**run.config(), key: value}))
    assert_rejected(lambda: resume_run(run), "config.yaml", key)


@pytest.mark.parametrize("text", ["", "3", "- a", "a: [", "\x00", "epochs: three", "objective: 3", "data: [1]"])
def test_rejects_a_damaged_config(run: Run, text: str, tmp_path: Path) -> None:
    as_run_folder(run).config_path.write_text(text)
    for run_command in (
        lambda: evaluate(run, progress=False),
        lambda: embed(run, out=tmp_path / "features.npz", progress=False),
        lambda: report([run], out=tmp_path / "page.html"),
        lambda: resume_run(run),
    ):
        assert_rejected(run_command, "config.yaml")


def test_rejects_an_empty_config(run: Run) -> None:
    as_run_folder(run).config_path.write_text("{}")
    assert_rejected(lambda: evaluate(run, progress=False), "config.yaml")


@pytest.mark.parametrize("file", ["nonfinite.json", "checkpoints/nonfinite.ckpt", "checkpoints/nonfinite.npz"])
@pytest.mark.parametrize("damage", [truncate, clear, write_garbage, write_pickle])
def test_rejects_a_damaged_step(settings: dict[str, Any], file: str, damage: Callable[[Path], None]) -> None:
    objects = {"data": settings["data"], "objective": StubObjective(at=2, factor=float("nan"))}
    with pytest.raises(FloatingPointError):
        train(**{**settings, **objects})
    damage(Path(settings["out"]) / file)
    assert_rejected(lambda: load_failed_step(settings["out"], **objects), f"{Path(file).name} is corrupt")


def test_rejects_a_step_without_its_files(settings: dict[str, Any]) -> None:
    objects = {"data": settings["data"], "objective": StubObjective(at=2, factor=float("nan"))}
    with pytest.raises(FloatingPointError):
        train(**{**settings, **objects})
    run = Run(settings["out"])
    as_run_folder(run).nonfinite_path.write_text(json.dumps({"step": "x"}))
    assert_rejected(lambda: load_failed_step(run.path, **objects), "nonfinite.json is corrupt")
