from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from contraport.cli import demo as demonstration
from contraport.runs import Run, WritableRun
from tests import TIMEOUT

from .conftest import Outcome

Command = Callable[..., Outcome]
QUICK = ("--batch_size", "20", "--epochs", "2", "--progress", "false")


def test_initial_weights_by_view(command: Command, data: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 2, 6)).astype(np.float32)
    np.savez(tmp_path / "pairs.npz", view0=vectors[:, 0], view1=vectors[:, 1, :4])
    assert command("train", "--data", "pairs.npz", "--out", "run", *QUICK) == (0, "", "")
    weights = ("--init.view0", "run", "--init.1", "run", "--freeze.0")
    assert command("train", "--data", "pairs.npz", *weights, "--out", "other", *QUICK) == (0, "", "")
    saved = yaml.safe_load((tmp_path / "other" / "config.yaml").read_text())
    assert (saved["init"], saved["freeze"]) == ({"view0": "run", "1": "run"}, {"0": True})
    first, other = (WritableRun(tmp_path / name).model() for name in ("run", "other"))
    same = [
        all(map(torch.equal, first.tower(view).encoder.parameters(), other.tower(view).encoder.parameters()))
        for view in (0, 1)
    ]
    assert same == [True, False]


def test_from_data_to_page(command: Command, data: str, tmp_path: Path) -> None:
    assert command("train", "--data", data, "--objective", "gca-uot", "--out", "run", *QUICK) == (0, "", "")
    outcome = command("evaluate", "run", "--all", "--progress=false")
    assert outcome.status == 0
    assert all(title in outcome.out for title in ("Linear probe", "Recall@5", "Effective rank", "95% interval"))
    assert "%" in outcome.out
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text())["rows"].keys() == {
        "trained",
        "untrained",
        "raw",
    }
    assert command("embed", "run", "--data", data, "--out", "features.npz", "--progress=false").out == "features.npz\n"
    assert len(np.load(tmp_path / "features.npz")["features"]) == 60
    assert command("report", "run", "--out", "page.html").out == "page.html\n"
    assert "<html" in (tmp_path / "page.html").read_text()


def test_log_lines_are_printed_once_and_progress_false_prints_warnings_only(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(0)
    for place in ("train/a", "train/b", "test/a", "test/b", "val/a"):
        for number in range(8):
            path = tmp_path / "photos" / place / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(random.integers(0, 255, (8, 8, 3)).astype(np.uint8)).save(path)
    (tmp_path / "photos" / "train" / "a" / "0.png").write_bytes(b"no image")
    assert command("train", "--data", "photos", "--out", "run", *QUICK, "--batch_size", "4").status == 0
    text = command("evaluate", "run", "--metrics", "knn").err
    assert text.count("is the test split") == 1
    assert text.count("cannot be read") == 1
    silent = command("embed", "run", "--out", "features.npz", "--progress=false").err
    assert "is the test split" not in silent
    assert silent.count("cannot be read") == 1
    monkeypatch.setenv("RANK", "1")  # only the first of several processes logs
    assert "is the test split" not in command("evaluate", "run", "--metrics", "knn").err


def test_flags_need_no_value(command: Command, data: str) -> None:
    argv = ("train", "--data", data, "--out", "run", *QUICK)
    assert command(*argv).status == 0
    assert command(*argv).status == 2
    assert command(*argv, "--overwrite").status == 0
    assert command("train", "--resume", "--out", "run", "--epochs", "3", "--progress", "false").status == 0
    assert WritableRun("run").metrics_rows()[-1]["epoch"] == 3


def test_resume_rejects_other_values(command: Command, data: str) -> None:
    assert command("train", "--data", data, "--out", "run", *QUICK).status == 0
    outcome = command("train", "--resume", "--out", "run", "--lr", "0.5")
    assert outcome.status == 2
    assert outcome.err.startswith("contraport: lr: ")
    assert "0.5" in outcome.err


def test_config_file_takes_one_value_of_a_list(command: Command, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("online_metrics: knn\n")
    printed = command("train", "--data", "digits", "--config", "one.yaml", "--print_config")
    assert yaml.safe_load(printed.out)["online_metrics"] == ["knn"]


def test_print_config_and_config_are_inverse(command: Command, data: str, tmp_path: Path) -> None:
    argv = ("--data", data, "--objective", "gca-ince", "--objective_settings.iterations", "3", "--lr", "1e-3", *QUICK)
    printed = command("train", *argv, "--print_config")
    assert printed.status == 0
    config = yaml.safe_load(printed.out)
    assert (config["data"], config["lr"], config["objective_settings"]) == (data, 1e-3, {"iterations": 3})
    assert not list(tmp_path.glob("run*"))
    (tmp_path / "mine.yaml").write_text(printed.out)
    assert command("train", "--config", "mine.yaml", "--print_config").out == printed.out
    assert command("train", "--config", "mine.yaml", "--out", "a").status == 0
    assert command("train", *argv, "--out", "b").status == 0
    assert WritableRun("a").config() == WritableRun("b").config()
    assert command("train", "--config", "a/config.yaml", "--seed", "1", "--out", "c", "--progress", "false").status == 0
    assert WritableRun("c").config() == {**WritableRun("a").config(), "seed": 1}


def test_print_config_resolves_the_recipe(command: Command, data: str, tmp_path: Path) -> None:
    argv = ("train", "--data", data, "--recipe", "moco", "--temperature", "1:0.1", *QUICK)
    printed = command(*argv, "--print_config")
    config = yaml.safe_load(printed.out)
    assert (config["recipe"], config["negatives"], config["momentum"]) == ("moco", "queue", 0.99)
    assert (config["objective_settings"], config["temperature"]) == ({"symmetric": False}, "1:0.1")
    (tmp_path / "mine.yaml").write_text(printed.out)
    assert command("train", "--config", "mine.yaml", "--out", "a").status == 0
    assert command(*argv, "--out", "b").status == 0
    assert WritableRun("a").config() == WritableRun("b").config()
    assert "(default: queue)" in " ".join(command("train", "--recipe", "moco", "--help").out.split())


def test_schedule_in_yaml_is_not_a_base_60_number(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("temperature: 1:0.1\nmomentum: 1e-1\nviews: 3\n")
    config = yaml.safe_load(command("train", "--config", "mine.yaml", "--print_config").out)
    assert (config["temperature"], config["momentum"], config["views"]) == ("1:0.1", 0.1, 3)


def test_recipes_are_listed(command: Command) -> None:
    outcome = command("list", "recipes")
    assert outcome.status == 0
    for text in ("moco", "byol", "--negatives queue", "gca-uot"):
        assert text in outcome.out


def test_diverged_training_has_status_1(command: Command, tmp_path: Path) -> None:
    huge = np.random.default_rng(0).normal(size=(60, 5))
    np.savez(tmp_path / "huge.npz", x=huge)
    outcome = command(
        "train",
        "--data",
        "huge.npz",
        "--out",
        "run",
        "--optimizer",
        "sgd",
        "--lr",
        "1e30",
        "--lr_scheduler",
        "constant",
        *QUICK,
    )
    assert outcome.status == 1
    assert "seed 0" in outcome.err
    assert outcome.err.count("\n") == 1
    assert (tmp_path / "run" / "nonfinite.json").exists()


def test_ctrl_c_and_resume(command: Command, data: str, tmp_path: Path) -> None:
    argv = ["train", "--data", data, "--out", "run", "--batch_size", "20", "--epochs", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "contraport", *argv],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        # Children of a background shell ignore the signal by default.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    checkpoint = tmp_path / "run" / "checkpoints" / "last.ckpt"
    deadline = time.monotonic() + TIMEOUT
    try:
        while not checkpoint.exists():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=TIMEOUT)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in error
    assert error.splitlines()[-1].endswith("contraport train --resume --out run")
    assert not list((tmp_path / "run").rglob(".*"))


def test_demo(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "DEMO_TRAIN_OPTIONS", {**demonstration.DEMO_TRAIN_OPTIONS, "encoder": "mlp"})
    fastest = iter((2, 1, 1))
    training = importlib.import_module("contraport.training.train")
    monkeypatch.setattr(
        training, "configured_or_fastest_thread_count", lambda settings, _: settings.threads or next(fastest)
    )
    outcome = command("demo", "--epochs", "1", "--progress", "false")
    assert outcome.status == 0
    for text in ("raw pixels", "untrained encoder", "nt-xent", "gca-uot", "probe", "kNN", "runs/demo/report.html"):
        assert text in outcome.out
    assert (tmp_path / "runs" / "demo" / "report.html").exists()
    both = [Run(tmp_path / "runs" / "demo" / name).settings() for name in ("nt-xent", "gca-uot")]
    assert [settings.threads for settings in both] == [2, 2], "expected the same number of threads"
    assert command("demo", "--epochs", "1", "--progress", "false").status == 0


def test_warns_about_repeated_options(command: Command, data: str) -> None:
    outcome = command("train", "--data", "missing.npy", "--seed=3", "--data", data, "--out", "run", *QUICK)
    assert outcome.status == 0
    assert "--data" in outcome.err
    assert "--seed" not in outcome.err


def test_error_of_a_stray_word_suggests_an_option(command: Command) -> None:
    assert "--query my photo.jpg" in command("neighbors", "photos.npz", "my photo.jpg").err
    error = command("neighbors", "photos.npz", "--query=1.jpg", "my photo.jpg").err
    assert "'my photo.jpg'" in error
    assert "--query takes one value" in error
