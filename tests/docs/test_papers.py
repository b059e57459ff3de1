"""Entries of the page of papers: commands parse, calls run, claims exist."""

import shlex

import pytest
import torch
import yaml

import contraport
from contraport.cli import main
from contraport.cli.commands import get_command
from contraport.cli.parsing import parse_command_line
from contraport.comparison.grid_builder import load_suite
from contraport.data import load
from tests.docs.pages import ROOT

PAPERS = yaml.safe_load((ROOT / "benchmarks" / "papers.yaml").read_text())
ENTRIES = [pytest.param(entry, id=entry["name"]) for paper in PAPERS for entry in paper["entries"]]
ANSWERS = {"agrees", "disagrees", "not decided", "impossible here"}


@pytest.mark.parametrize("entry", ENTRIES)
def test_entries_have_runnable_commands(entry):
    assert entry.keys() <= {"name", "shows", "run", "python", "claims", "answer", "found"}
    assert "run" in entry or "python" in entry
    for line in entry.get("run", []):
        _, name, *words = shlex.split(line)
        command = get_command(name)
        arguments = parse_command_line(command, words, prog=f"contraport {name}")
        assert command.options_class(**(command.resolve_options(arguments) if command.resolve_options else arguments))
    if "python" in entry:
        assert eval(entry["python"], {"contraport": contraport, "torch": torch}) is not None


@pytest.mark.parametrize("entry", ENTRIES)
def test_entries_have_one_result(entry):
    if "claims" in entry:
        assert "answer" not in entry
        for claim in entry["claims"]:
            suite, number = claim.split("/")
            assert int(number) < len(load_suite(suite)["claims"])
    else:
        assert entry["answer"] in ANSWERS
        assert entry["found"]


SMALL = [
    pytest.param(line, id=line)
    for line in dict.fromkeys(
        line for paper in PAPERS for entry in paper["entries"] for line in entry.get("run", []) if "--quick" in line
    )
]


def skip_without_data(*names):
    for name in names:
        try:
            load(name)
        except contraport.UsageError as error:
            if error.code != "data.not_found":
                raise
            pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("line", SMALL)
def test_small_commands_run(line, tmp_path, capsys):
    _, *words = shlex.split(line)
    words[words.index("--out") + 1] = str(tmp_path / "out")
    small = ["--seeds", "1", "--epochs", "1", "--data", "digits", "--encoder", "mlp", "--items", "256"]
    if "multiview" in line:
        small = ["--seeds", "1", "--epochs", "1"]
        skip_without_data(*load_suite("multiview")["data"])
    else:
        small += ["--train", '{"batch_size": 64}']
    assert main([*words, *small]) in (0, None), capsys.readouterr().err
