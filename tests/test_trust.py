"""Run folders from untrusted sources run no code without `trust_remote_code`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contraport import embed, evaluate, export, train
from contraport.cli import main
from contraport.encoders import Model
from contraport.runs import Run, as_run_folder
from contraport.training import load_failed_step
from tests import TIMEOUT
from tests.errors import raises_usage_error

MODULE = """
from pathlib import Path
from contraport.encoders.builtin_networks import MLP as Net
Path("code-was-run").touch()
"""
UNTRUSTED = ("encoder.untrusted", "'their_nets:Net'", "trust_remote_code=True")


@pytest.fixture(scope="module")
def run_with_named_encoder(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Small run with an encoder of the catalog."""
    out = tmp_path_factory.mktemp("theirs") / "run"
    return train(data="digits", encoder="mlp", batch_size=600, epochs=1, out=out, progress=False)


@pytest.fixture
def run(run_with_named_encoder: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run folder that names the module `their_nets.py` in the current folder as its encoder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("their_nets.py").write_text(MODULE)
    run = Run("run")
    shutil.copytree(run_with_named_encoder.path, run.path)
    config = json.loads((as_run_folder(run).model_path / "config.json").read_text())
    (as_run_folder(run).model_path / "config.json").write_text(json.dumps({**config, "encoder": ["their_nets:Net"]}))
    as_run_folder(run).config_path.write_text(yaml.safe_dump({**run.config(), "encoder": "their_nets:Net"}))
    (as_run_folder(run).checkpoints / "nonfinite.npz").touch()  # required by load_failed_step
    yield run
    sys.modules.pop("their_nets", None)


def test_resume_command_includes_trust_remote_code(run: Run, run_with_named_encoder: Run) -> None:
    assert run.resume_command == "contraport train --resume --trust_remote_code --out run"
    assert run_with_named_encoder.resume_command == f"contraport train --resume --out {run_with_named_encoder.path}"
    config = run.config()
    as_run_folder(run).config_path.write_text(yaml.safe_dump(config | {"data": "<vectors>"}))
    assert run.resume_command.startswith(
        "contraport.train(resume=True, out='run', trust_remote_code=True, data=...) in Python"
    )
    as_run_folder(run).config_path.write_text(
        yaml.safe_dump(config | {"encoder": ["their_nets:Net", "<Net of 3 weights, 0>"]})
    )
    assert run.resume_command.startswith("contraport.train(resume=True, out='run', encoder=...) in Python")
    as_run_folder(run).config_path.unlink()
    assert run.resume_command == "contraport train --resume --out run"
    assert Run("my run").resume_command == "contraport train --resume --out 'my run'"


def code_was_run() -> bool:
    return Path("code-was-run").exists()


CALLS: dict[str, Callable[..., Any]] = {
    "from_pretrained": lambda **trust_remote_code: Model.from_pretrained("run/model", **trust_remote_code),
    "model": lambda **trust_remote_code: Run("run").model(**trust_remote_code),
    "evaluate": lambda **trust_remote_code: evaluate("run", progress=False, **trust_remote_code),
    "embed": lambda **trust_remote_code: embed("run", out="features.npz", progress=False, **trust_remote_code),
    "export": lambda **trust_remote_code: export("run", format="safetensors", out="exported", **trust_remote_code),
    "resume": lambda **trust_remote_code: train(resume=True, out="run", epochs=2, progress=False, **trust_remote_code),
}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("call_name", CALLS)
def test_code_runs_only_if_trusted(call_name: str) -> None:
    with raises_usage_error(*UNTRUSTED):
        CALLS[call_name]()
    assert not code_was_run()
    assert "their_nets" not in sys.modules
    CALLS[call_name](trust_remote_code=True)
    assert code_was_run()


@pytest.mark.usefixtures("run")
def test_replay_runs_no_code() -> None:
    with raises_usage_error(*UNTRUSTED):
        load_failed_step("run")
    assert not code_was_run()


def test_encoder_named_by_the_caller_is_trusted(run: Run) -> None:
    train(resume=True, out="run", epochs=2, encoder="their_nets:Net", progress=False)
    assert code_was_run()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("name", ["builtins:exit", "os:system", "subprocess:Popen"])
def test_standard_library_is_rejected_even_if_trusted(name: str) -> None:
    file = Path("run/model/config.json")
    file.write_text(json.dumps({**json.loads(file.read_text()), "encoder": [name]}))
    with raises_usage_error("model.unreadable", f"'{name}' belongs to Python"):
        evaluate("run", trust_remote_code=True, progress=False)


@pytest.mark.parametrize("key", ["trust_remote_code", "out", "overwrite"])
def test_folder_cannot_choose_its_callable(run: Run, key: str) -> None:
    as_run_folder(run).config_path.write_text(yaml.safe_dump({**run.config(), key: True}))
    with raises_usage_error("unknown", "run/config.yaml", f"'{key}'"):
        train(resume=True, out="run", epochs=2, progress=False)
    assert not code_was_run()


@pytest.mark.usefixtures("run")
def test_commands_accept_trust_remote_code(capsys: pytest.CaptureFixture[str]) -> None:
    commands = (
        ["evaluate", "run", "--progress", "false"],
        ["embed", "run", "--out", "features.npz", "--progress", "false"],
        ["export", "run", "--format", "safetensors", "--out", "exported"],
        ["train", "--resume", "--out", "run", "--progress", "false"],
    )
    for command in commands:
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "their_nets:Net" in error
        assert error.count("\n") == 1
        assert not code_was_run()
    for command in commands:
        assert main([*command, "--trust_remote_code"]) == 0


@pytest.mark.usefixtures("run")
def test_modules_of_the_current_folder_are_not_imported() -> None:
    command = [sys.executable, "-m", "contraport", "export", "run", "--format", "safetensors", "--out", "exported"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert completed.returncode == 2, completed.stderr
    assert "their_nets:Net" in completed.stderr
    assert not code_was_run()
