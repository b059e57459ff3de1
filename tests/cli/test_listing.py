"""`contraport list`: tables that fit the terminal."""

from __future__ import annotations

import json
import re

import pytest

from contraport.catalog import OBJECTIVES
from contraport.cli import main
from contraport.cli.utility_command_options import LIST_NAMES
from contraport.comparison.grid_builder import suite_paths_by_name


@pytest.mark.parametrize("what", LIST_NAMES)
def test_table_fits_80_columns_and_loses_no_word(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", what]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("name ")
    assert lines[-1].startswith("next: contraport ")
    assert max(map(len, lines)) <= 80
    assert main(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    text = re.sub(r"\W", "", "".join(lines))
    for row in rows:
        for heading, cell in row.items():
            if heading != "reference":  # shortened to authors and year
                assert all(re.sub(r"\W", "", word) in text for word in cell.split() if len(word) < 12), cell


@pytest.mark.parametrize(("what", "heading"), [("recipes", "options"), ("suites", "data")])
def test_table_breaks_no_option_and_no_data_name(
    what: str, heading: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["list", what]) == 0
    printed = set(capsys.readouterr().out.split())
    assert main(["list", what, "--json"]) == 0
    assert all(printed >= set(row[heading].split()) for row in json.loads(capsys.readouterr().out))


def test_objectives_name_options_and_no_python_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "objectives", "--json"]) == 0
    methods = {row["name"]: row["method"] for row in json.loads(capsys.readouterr().out)}
    assert not [method for method in methods.values() if "=`" in method]
    assert "--sample_weight" in methods["cosent"]
    assert "--teacher" in methods["x-clr"]


def test_objectives_have_method_use_case_and_reference(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "objectives", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows.keys() == OBJECTIVES.keys()
    assert rows["sup-con"]["when to use it"] == "labels"
    assert "2020" in rows["sup-con"]["reference"]
    assert rows["spectral"]["when to use it"] == ""


def test_suites_are_listed_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "suites"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[2:-2] if not line.startswith(" ")] == list(suite_paths_by_name())


def test_deprecated_name_of_metrics_is_accepted(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert main(["list", "measures"]) == 0
    assert "linear_probe" in capsys.readouterr().out
    assert "list metrics" in caplog.text
