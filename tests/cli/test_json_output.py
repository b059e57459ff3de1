from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import contraport
from contraport.catalog import OBJECTIVES
from contraport.cli import demo as demonstration
from contraport.cli import doctor
from contraport.cli.commands import BUILTIN_COMMANDS, get_command
from contraport.feature_files import read_features
from tests import TIMEOUT

from .conftest import Outcome


def test_lists(command) -> None:
    result: Outcome = command("list", "objectives", "--json")
    rows = json.loads(result.out)
    assert [row["name"] for row in rows] == list(OBJECTIVES)
    assert all(row["method"] for row in rows)


def test_evaluations_and_neighbors(command, data: str) -> None:
    quick = ("--batch_size", "20", "--epochs", "1", "--progress", "false")
    assert command("train", "--data", data, "--out", "run", *quick).status == 0
    result = json.loads(command("evaluate", "run", "--progress=false", "--json").out)["run"]
    assert result["rows"]["trained"]["knn"] <= 1
    assert command("embed", "run", "--out", "features.npz", "--progress=false").status == 0
    actual = json.loads(command("neighbors", "features.npz", "--query", "3", "--top", "2", "--json").out)
    keys = ["class_name", "description", "name", "position", "row", "similarity"]
    assert [sorted(near) for near in actual] == [keys] * 2
    rows = read_features(Path("features.npz")).source_rows
    assert [near["row"] for near in actual] == [rows[near["position"]] for near in actual]


def test_demo(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demonstration, "DEMO_TRAIN_OPTIONS", {**demonstration.DEMO_TRAIN_OPTIONS, "encoder": "mlp"})
    result = json.loads(command("demo", "--epochs", "1", "--progress", "false", "--json").out)
    assert list(result["evaluations"]) == list(result["training_seconds"]) == list(demonstration.DEMO_OBJECTIVES)
    assert all(evaluation["rows"]["trained"]["knn"] <= 1 for evaluation in result["evaluations"].values())
    assert result["page"] == "runs/demo/report.html"


def test_command_without_result_has_no_json(error_code) -> None:
    assert error_code("train", "--json") == "option.unknown"


def test_errors_have_code_and_argument(command) -> None:
    outcome: Outcome = command("evaluate", "missing", "--neighbors", "0", "--json")
    assert outcome.status == 2
    error = json.loads(outcome.out)["error"]
    assert (error["code"], error["argument"]) == ("neighbors.invalid", "neighbors")
    assert error["message"] in outcome.err


def prints_result(call: ast.Call) -> bool:
    """Return whether a call prints to the standard output; lines of progress go to the standard error."""
    name = call.func.id if isinstance(call.func, ast.Name) else None
    return name == "print_table" or (name == "print" and not any(one.arg == "file" for one in call.keywords))


def test_only_printers_of_commands_print() -> None:
    """Otherwise `--json` could not replace all printed results."""
    package = Path(contraport.__file__).parent
    other_modules = {
        "cli/__init__.py",
        "cli/commands.py",
        "estimators/sne.py",
    }  # help, path of the page, `verbose` as in scikit-learn
    printing = {
        f"contraport.{'.'.join(path.relative_to(package).with_suffix('').parts)}:{function.name}"
        for path in package.rglob("*.py")
        if str(path.relative_to(package)) not in other_modules
        for function in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(function, ast.FunctionDef)
        and any(isinstance(node, ast.Call) and prints_result(node) for node in ast.walk(function))
    }
    assert printing - {"contraport.cli.result_printers:print_table"} == {
        show for name in BUILTIN_COMMANDS if not (show := get_command(name).printer_path).startswith("builtins:")
    } - {""}


def test_exit_status_of_a_failed_check(command, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_test() -> None:
        raise RuntimeError("the disk")

    monkeypatch.setattr(doctor, "_iter_self_tests", lambda extras: [("something", failing_test)])
    result = command("doctor", "--json")
    assert json.loads(result.out)["checks"][0]["failure"] == "RuntimeError: the disk"
    assert result.status == 1
    assert "something" in result.err


def test_reader_may_close_the_pipe(tmp_path: Path) -> None:
    line = f"{shlex.quote(sys.executable)} -m contraport list objectives | head -n 1"
    completed = subprocess.run(
        line, shell=True, capture_output=True, text=True, cwd=tmp_path, timeout=TIMEOUT, check=False
    )
    assert (len(completed.stdout.splitlines()), completed.stderr) == (1, "")
