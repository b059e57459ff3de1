from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from contraport.errors import UsageError
from contraport.features import Features, write_features
from contraport.runs import Run
from contraport.training import train

from .conftest import Outcome

Command = Callable[..., Outcome]


def snapshot(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(command: Command, folder: Path, *argv: str) -> str:
    """Run a command that has to fail with one clear line and to leave every file as it was; return the line."""
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
    ("argv", "message"),
    [
        ("--epoch 3", "option: unknown name '--epoch'; did you mean '--epochs'?"),
        ("--batch-size 3", "did you mean '--batch_size'?"),
        ("stray", "unexpected argument 'stray': expected options, which start with '--', such as --data stray."),
        (
            "--data a.npy b.npy",
            "'b.npy': --data takes one value; arrays of several views are in one .npz, by their names.",
        ),
        ("--epochs three", "epochs: expected a whole number, got 'three'"),
        ("--epochs 2.5", "epochs: expected a whole number, got '2.5'"),
        ("--temperature warm", "temperature: expected a number, or start:end:shape"),
        ("--temperature -1", "temperature: expected a positive finite number, got -1.0"),
        ("--temperature=-1", "temperature: expected a positive finite number, got -1.0"),
        ("--temperature nan", "temperature"),
        ("--recipe mocco", "recipe: unknown name 'mocco'; did you mean 'moco'?"),
        ("--queue_size 9", "queue_size: expected nothing, as it belongs to negatives='queue', got 9"),
        ("--momentum 1", "momentum: expected numbers from 0 to 1"),
        ("--recipe moco --momentum slow", "momentum: expected a number, or start:end:shape"),
        ("--overwrite maybe", "overwrite: expected true or false, got 'maybe'"),
        ("--objective gca-uot:relaxation=0.2", "objective: expected a name alone, such as 'gca-uot', got"),
        ("--objective gca-uott", "objective: unknown name 'gca-uott'; did you mean 'gca-uot'?"),
        ("--objective gca-uot --objective_settings.iteration 3", "did you mean 'iterations'?"),
        ("--objective_settings 3", 'such as {"key": "value"} (or --objective_settings.KEY VALUE), got \'3\''),
        ("--encoder resnet81", "encoder: unknown name 'resnet81'; did you mean 'resnet18'?"),
        ("--data digitz", "data: unknown name 'digitz'; did you mean 'digits'?"),
        ("--data missing/folder", "missing/folder"),
        ("--data missing/", "data: there is no file or folder 'missing/'."),
        ("--data missing.npz", "missing.npz"),
        ("--data empty", "empty"),
        ("--data broken", "broken"),
        ("--data broken.npz", "broken.npz"),
        ("--batch_size 100", "batch_size: expected at most the 48 items of 'data.npz', got 100"),
        ("--out full", "out: full is not empty"),
        ("--out full --overwrite", "out: full is not empty and is no run"),
        ("--out file", "out: file is a file"),
        ("--resume --out missing", "no such folder: missing"),
        ("--resume --out full", "full is no run"),
        ("--config missing.yaml", "missing.yaml"),
        ("--config typo.yaml", "config: key: unknown name 'epohcs'; did you mean 'epochs'?"),
        ("--config wrong.yaml", "epochs: expected a whole number, got 'many'"),
        ("--config one.yaml", "config: monitor: expected a list, in brackets, got 'knn'"),
        ("--config torn.yaml", "config"),
        ("--config binary.yaml", "config: binary.yaml cannot be read as text in UTF-8"),
        ("--config list.yaml", "config: expected keys with values, got '- 1 - 2'"),
        ("--config deep.yaml", "config: maximum recursion depth"),
        ("--config bomb.yaml", "config: the alias *a is not read"),
        ("--config digits.yaml", "config: Exceeds the limit (4300 digits)"),
        ("--seed 18446744073709551616", "seed: expected at most 18446744073709551615, got 18446744073709551616"),
        ("--projection 99999999999", "projection: expected at most 2147483647"),
        ("--num_workers 100000", "one for each core that this process may use, got 100000"),
        ("--device meta", "device: unknown name 'meta'"),
        ("--given_views 0 image", "given_views: expected a whole number, got 'image'"),
        ("--views 999999999", "views: expected a number from 1 to 1000"),
    ],
)
def test_a_mistake_costs_one_line(command: Command, data: str, tmp_path: Path, argv: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.png").write_bytes(b"no image")
    (tmp_path / "broken.npz").write_bytes(b"no arrays")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("ten years")
    (tmp_path / "file").write_text("")
    (tmp_path / "typo.yaml").write_text("epohcs: 3\n")
    (tmp_path / "wrong.yaml").write_text("epochs: many\n")
    (tmp_path / "one.yaml").write_text("online_metrics: knn\n")
    (tmp_path / "torn.yaml").write_text("{epochs: 3\n")
    (tmp_path / "binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "deep.yaml").write_text("[" * 5_000)
    (tmp_path / "bomb.yaml").write_text("a: &a [x, x]\n" + "".join(f"{n}: [*a, *a]\n" for n in range(9)))
    (tmp_path / "digits.yaml").write_text("epochs: " + "9" * 5_000)
    given = argv.split()
    defaults = ["--data", data, "--out", "run", "--epochs", "1", "--batch_size", "20"]
    pairs = zip(defaults[::2], defaults[1::2], strict=True)
    missing = [word for name, value in pairs if name not in given for word in (name, value)]
    assert message in refused(command, tmp_path, "train", *missing, *given)
    assert not (tmp_path / "run").exists()


def test_data_is_needed(command: Command, tmp_path: Path) -> None:
    assert "data: expected" in refused(command, tmp_path, "train")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("evaluate", "required: run"),
        ("evaluate missing", "no such folder: missing"),
        ("embed missing --out features.npz", "no such folder: missing"),
        ("embed missing --out features.csv", ".npz, .npy, .parquet"),
        ("report missing --out page.html", "no such folder: missing"),
        ("report missing", "run: no such folder: missing. More: contraport report --help"),
        ("report missing other --out nowhere/page.html", "run: no such folder: missing"),
        ("embed missing", "run: no such folder: missing"),
        ("export missing", "run: no such folder: missing"),
        ("report", "required: runs"),
        ("list objective", "expected one of recipes, objectives, encoders, data, measures, suites, got 'objective'"),
        ("list", "required: what"),
        ("demo --epochs 0", "epochs: expected a whole number from 1 on, got 0"),
    ],
)
def test_other_verbs(command: Command, tmp_path: Path, argv: str, message: str) -> None:
    assert message in refused(command, tmp_path, *argv.split())


@pytest.mark.parametrize("name", ["photos.npz", "photos.npy", "photos.parquet"])
def test_a_file_of_features_is_no_run(command: Command, tmp_path: Path, name: str) -> None:
    write_features(tmp_path / name, Features(np.ones((3, 2), np.float32), np.arange(3), np.full(3, "test")))
    told = f"run: {name} is a file of features, which neighbors, search, duplicates and cluster take, and no run"
    assert told in refused(command, tmp_path, "evaluate", name)
    assert told in refused(command, tmp_path, "report", name)
    (tmp_path / "notes.txt").write_text("mine")
    assert "run: notes.txt is a file and no run" in refused(command, tmp_path, "evaluate", "notes.txt")


def test_recipes_and_objectives_are_told_apart(command: Command, tmp_path: Path) -> None:
    told = "objective: 'simclr' is a recipe and no objective; expected --recipe simclr, or its objective alone"
    assert f"{told}: --objective nt-xent." in refused(command, tmp_path, "train", "--objective", "simclr")
    assert "expected --recipe simclr" in refused(command, tmp_path, "train", "--objective", "SimCLR")
    told = "recipe: 'quadratic' is an objective and no recipe; expected --objective quadratic."
    assert told in refused(command, tmp_path, "train", "--recipe", "quadratic")


def test_errors_of_commands_write_options_as_flags(command: Command, tmp_path: Path) -> None:
    """No mistake is explained by a keyword of Python, and the same call in Python has no flag."""
    (tmp_path / "two.csv").write_text("label,y,x\n" + "a,b,1\n" * 9)
    (tmp_path / "names.csv").write_text("city,x\n" + "Rome,1\n" * 9)
    (tmp_path / "page.html").write_text("mine")
    for argv, flags, keywords in (
        ("train --data two.csv", "--columns.labels ...", "columns={'labels': ...}"),
        ("train --data names.csv", "--columns.labels city", "columns={'labels': 'city'}"),
        ("train --data names.csv", "--columns.views ...", "columns={'views': ...}"),
    ):
        assert flags in (line := refused(command, tmp_path, *argv.split()))
        assert "={" not in line
        with pytest.raises(UsageError, match=re.escape(keywords)) as caught:
            train(data=str(tmp_path / argv.split()[-1]))
        assert "--" not in str(caught.value)
    for argv in ("--data digits --out taken", "--data digits --ignore_labels --objective sup-con"):
        (tmp_path / "taken").mkdir(exist_ok=True)
        (tmp_path / "taken" / "mine.txt").write_text("mine")
        assert "=True" not in refused(command, tmp_path, "train", *argv.split())


def test_a_corrupt_image_is_skipped_counted_and_named(command: Command, photos: Path) -> None:
    (photos / "class0" / "torn.png").write_bytes(b"no image")
    outcome = command("train", "--data", "photos", "--epochs", "1", "--batch_size", "4", "--out", "run")
    assert outcome.status == 0
    log = Run("run").log_path.read_text()
    assert "left out, as unreadable: " in log
    assert "torn.png" in log


def test_one_class_is_enough(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", x=np.random.default_rng(0).normal(size=(60, 5)), labels=np.zeros(60, int))
    assert command("train", "--data", "one.npz", "--epochs", "1", "--batch_size", "20", "--out", "run").status == 0
    outcome = command("evaluate", "run")
    assert outcome.status == 0
    assert "the labels are of one class only" in outcome.out


def test_what_others_raise_is_one_line_too(command: Command, data: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    line = refused(command, tmp_path, "train", "--data", data, "--batch_size", "20", "--out", "file/run")
    assert "file" in line


def test_what_has_a_place_is_not_given_by_name(command: Command, tmp_path: Path) -> None:
    line = refused(command, tmp_path, "search", "features.npz", "--query", "a red bag")
    assert "query: expected it by its place, without a name: contraport search FEATURES QUERY." in line


def test_what_a_library_told_ends_with_a_stop(command: Command, tmp_path: Path) -> None:
    (tmp_path / "features.parquet").write_text("junk")
    assert ". More: " in refused(command, tmp_path, "duplicates", "features.parquet")


def test_the_exit_status_reaches_the_shell(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "contraport", "train", "--data", "digits", "--batch_size", "9999"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    told = "contraport: batch_size: expected at most the 1348 items of 'digits', got 9999."
    assert done.stderr == f"{told} More: contraport docs training\n"
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("contraport.reporting")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    line = refused(command, tmp_path, "report", "run", "--out", "page.html")
    assert "report needs the package 'jinja2': pip install 'contraport[train,report]'" in line


def test_what_does_not_fit_in_memory_costs_one_line(command: Command, data: str) -> None:
    argv = ("--data", data, "--out", "run", "--batch_size", "20", "--projection", "2147483647")
    outcome = command("train", *argv)
    assert outcome.status == 1
    assert outcome.err.startswith("contraport: there is not enough memory")
    assert outcome.err.count("\n") == 1
