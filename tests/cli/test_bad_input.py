from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contraport.feature_files import Features, write_features
from contraport.runs import as_run_folder
from contraport.training import train
from tests.errors import raises_usage_error

from .conftest import Outcome

Command = Callable[..., Outcome]
ErrorCode = Callable[..., str]


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def matches(code: str, expected: str) -> bool:
    """Return whether a code is the expected one, or for an expected argument without a kind has that argument."""
    return code == expected or ("." not in expected and code.partition(".")[0] == expected) or not expected


def reject(command: Command, folder: Path, *argv: str) -> str:
    """Run a command that must fail with one line and change no file; return the line."""
    before = snapshot(folder)
    outcome = command(*argv)
    assert outcome.status == 2
    assert outcome.out == ""
    assert outcome.err.startswith("contraport: ")
    assert outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err
    assert snapshot(folder) == before
    return outcome.err


@pytest.mark.parametrize(
    ("argv", "code", "value"),
    [
        ("--epoch 3", "option.unknown", "'--epochs'"),
        ("--batch-sise 3", "option.unknown", "'--batch_size'"),
        ("--learning_rate 3", "option.unknown", "'--lr'"),
        ("stray", "unexpected_argument", "'stray'"),
        ("--data a.npy b.npy", "unexpected_argument", "'b.npy'"),
        ("--columns.views a_* b_*", "unexpected_argument", '["a_*", "b_*"]'),
        ("--epochs", "epochs.missing", ""),
        ("--help=all", "help.invalid", "'all'"),
        ("--epochs three", "epochs.invalid", "'three'"),
        ("--epochs 2.5", "epochs.invalid", "'2.5'"),
        ("--epochs.many 3", "epochs.invalid", "--epochs.many 3"),
        ("--layer_decay=", "layer_decay.invalid", "''"),
        ("--encoder.bogus mlp", "encoder.unknown", "'bogus'"),
        ("--temperature warm", "temperature", "'warm'"),
        ("--temperature -1", "temperature", "-1.0"),
        ("--temperature=-1", "temperature", "-1.0"),
        ("--temperature nan", "temperature", "nan"),
        ("--recipe mocco", "recipe.unknown", "'moco'"),
        ("--queue_size 9", "queue_size", "9"),
        ("--momentum 1", "momentum", "got 1"),
        ("--recipe moco --momentum slow", "momentum", "'slow'"),
        ("--overwrite maybe", "overwrite.invalid", "'maybe'"),
        ("--objective gca-uot:relaxation=0.2", "objective", "'gca-uot'"),
        ("--objective gca-uott", "objective.unknown", "'gca-uot'"),
        ("--objective gca-uot --objective_settings.iteration 3", "", "'iterations'"),
        ("--objective_settings 3", "objective_settings.invalid", "--objective_settings.KEY VALUE"),
        ("--encoder resnet81", "encoder", "'resnet18'"),
        ("--data digitz", "data", "'digits'"),
        ("--data missing/folder", "data", "missing/folder"),
        ("--data missing/", "data", "'missing/'"),
        ("--data missing.npz", "data", "missing.npz"),
        ("--data empty", "data", "empty"),
        ("--data broken", "data", "broken"),
        ("--data broken.npz", "data.unreadable", "broken.npz"),
        ("--batch_size 100", "batch_size", "48"),
        ("--out full", "out", "full"),
        ("--out full --overwrite", "out", "config.yaml"),
        ("--out file", "out", "file"),
        ("--resume --out missing", "out.not_found", "missing"),
        ("--resume --out full", "out.not_a_run", "full"),
        ("--config missing.yaml", "config.invalid", "missing.yaml"),
        ("--config typo.yaml", "config.unknown", "typo.yaml"),
        ("--config full", "config.invalid", "full"),
        ("--config wrong.yaml", "epochs.invalid", "'many'"),
        ("--config torn.yaml", "config.invalid", "torn.yaml: line 2, column 1"),
        ("--config binary.yaml", "config.unreadable", "binary.yaml"),
        ("--config list.yaml", "config.invalid", "'- 1 - 2'"),
        ("--config deep.yaml", "config.invalid", "recursion"),
        ("--config bomb.yaml", "config.invalid", "*a"),
        ("--config digits.yaml", "config.invalid", "4300"),
        ("--seed 18446744073709551616", "seed.too_large", "18446744073709551615"),
        ("--projection 99999999999", "projection.too_large", "2147483647"),
        ("--num_workers 100000", "num_workers", "100000"),
        ("--device meta", "device.unknown", "'meta'"),
        ("--given_views 0 imag", "given_views.unknown", "'imag'"),
        ("--views 999999999", "views", "1000"),
    ],
)
def test_train_rejects_input_with_one_line(
    command: Command, error_code: ErrorCode, data: str, tmp_path: Path, argv: str, code: str, value: str
) -> None:
    """An error has this code, or for a code without a kind this argument, and names the value; no file changes."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no image")
    (tmp_path / "broken.npz").write_bytes(b"no arrays")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("ten years")
    (tmp_path / "file").write_text("")
    (tmp_path / "typo.yaml").write_text("epohcs: 3\n")
    (tmp_path / "wrong.yaml").write_text("epochs: many\n")
    (tmp_path / "torn.yaml").write_text("{epochs: 3\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "deep.yaml").write_text("[" * 5_000)
    (tmp_path / "bomb.yaml").write_text("a: &a [x, x]\n" + "".join(f"{n}: [*a, *a]\n" for n in range(9)))
    (tmp_path / "digits.yaml").write_text("epochs: " + "9" * 5_000)
    words = argv.split()
    defaults = ["--data", data, "--out", "run", "--epochs", "1", "--batch_size", "20"]
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    missing = [word for name, default in pairs if name not in words for word in (name, default)]
    assert value in reject(command, tmp_path, "train", *missing, *words)
    assert matches(error_code("train", *missing, *words), code)
    assert not (tmp_path / "run").exists()


def test_train_requires_data(error_code: ErrorCode) -> None:
    assert matches(error_code("train"), "data")


@pytest.mark.parametrize(
    ("argv", "code", "value"),
    [
        ("evaluate", "run.missing", ""),
        ("evaluate missing", "run", "missing"),
        ("embed missing --out features.npz", "run", "missing"),
        ("embed missing --out features.csv", "out", ".npz, .npy or .parquet"),
        ("report missing --out page.html", "runs.not_found", "missing"),
        ("report missing", "out.missing", "More: contraport report --help"),
        ("report missing other --out nowhere/page.html", "runs.not_found", "missing"),
        ("report", "runs.missing", ""),
        ("list objective", "what.unknown", "'objectives'"),
        ("list", "what.missing", ""),
        ("cluster photos.npz --clusters 3", "option.unknown", "'--k'"),
        ("compare --data digits --objectives foo", "objectives.unknown", "'foo'"),
        ("demo --epochs 0", "epochs.invalid", "0"),
    ],
)
def test_other_commands_reject_input_with_one_line(
    command: Command, error_code: ErrorCode, tmp_path: Path, argv: str, code: str, value: str
) -> None:
    assert value in reject(command, tmp_path, *argv.split())
    assert matches(error_code(*argv.split()), code)


@pytest.mark.parametrize("name", ["photos.npz", "photos.npy", "photos.parquet"])
def test_rejects_a_file_in_place_of_a_run(command: Command, tmp_path: Path, name: str) -> None:
    write_features(tmp_path / name, Features(np.ones((3, 2), np.float32), np.arange(3), np.full(3, "test")))
    for argument, *argv in (["run", "evaluate", name], ["runs", "report", name, "--out", "page.html"]):
        line = reject(command, tmp_path, *argv)
        assert line.startswith(f"contraport: {argument}: ")
        assert name in line


def test_error_distinguishes_recipes_and_objectives(command: Command, tmp_path: Path) -> None:
    line = reject(command, tmp_path, "train", "--objective", "simclr")
    assert "--recipe simclr" in line
    assert "--recipe simclr" in reject(command, tmp_path, "train", "--objective", "SimCLR")
    assert "--objective quadratic" in reject(command, tmp_path, "train", "--recipe", "quadratic")


def test_errors_of_commands_write_options_as_flags(command: Command, tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("label,y,x\n" + "a,b,1\n" * 9)
    (tmp_path / "names.csv").write_text("city,x\n" + "Rome,1\n" * 9)
    (tmp_path / "page.html").write_text("mine")
    for argv, flags, keywords in (
        ("train --data two.csv", "--columns.labels label", "columns={'labels': 'label'}"),
        ("train --data names.csv", "--columns.labels city", "columns={'labels': 'city'}"),
        ("train --data names.csv", '--columns.views \'["city", "..."]\'', "columns={'views': ['city', '...']}"),
    ):
        assert flags in (line := reject(command, tmp_path, *argv.split()))
        assert "={" not in line
        with raises_usage_error("data.*", keywords) as caught:
            train(data=str(tmp_path / argv.split()[-1]))
        assert "--" not in str(caught.value)
    for argv in ("--data digits --out taken", "--data digits --ignore_labels --objective sup-con"):
        (tmp_path / "taken").mkdir(exist_ok=True)
        (tmp_path / "taken" / "mine.txt").write_text("mine")
        assert "=True" not in reject(command, tmp_path, "train", *argv.split())


def test_log_names_corrupt_images(command: Command, photos: Path) -> None:
    (photos / "class0" / "torn.png").write_bytes(b"no image")
    outcome = command("train", "--data", "photos", "--epochs", "1", "--batch_size", "4", "--out", "run")
    assert outcome.status == 0
    log = as_run_folder("run").log_path.read_text()
    assert "torn.png" in log


def test_one_class_is_accepted(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.random.default_rng(0).normal(size=(60, 5)), labels=np.zeros(60, int))
    assert command("train", "--data", "one.npz", "--epochs", "1", "--batch_size", "20", "--out", "run").status == 0
    outcome = command("evaluate", "run")
    assert outcome.status == 0


def test_os_errors_are_one_line(command: Command, data: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = reject(command, tmp_path, "train", "--data", data, "--batch_size", "20", "--out", "file/run")
    assert "file" in line


def test_positional_option_is_not_a_flag(command: Command, tmp_path: Path) -> None:
    line = reject(command, tmp_path, "search", "features.npz", "--query", "a red bag")
    assert "contraport search FEATURES QUERY" in line


def test_message_of_a_library_ends_with_a_period(command: Command, tmp_path: Path) -> None:
    (tmp_path / "features.parquet").write_text("junk")
    assert ". More: " in reject(command, tmp_path, "duplicates", "features.parquet")


def test_exit_status_reaches_the_shell(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "contraport", "train", "--data", "digits", "--batch_size", "9999"]
    completed = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert re.fullmatch(r"contraport: batch_size: .*1348.*9999.* More: contraport docs training\n", completed.stderr)
    assert not list(tmp_path.iterdir())


def test_names_missing_package(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("contraport.reporting")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    line = reject(command, tmp_path, "report", "run", "--out", "page.html")
    assert "report needs the package 'jinja2': pip install 'contraport[train,report]'" in line


def test_out_of_memory_is_one_line(command: Command, data: str) -> None:
    argv = ("--data", data, "--out", "run", "--batch_size", "20", "--projection", "2147483647")
    outcome = command("train", *argv)
    assert outcome.status == 1
    assert "out-of-memory" in outcome.err
    assert outcome.err.count("\n") == 1
