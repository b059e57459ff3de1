from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import get_args

import pytest

from contraport import __version__
from contraport.cli.commands import BUILTIN_COMMANDS, get_command
from contraport.options import CommandGroupName
from contraport.training.config import TRAIN_OPTIONS
from tests import TIMEOUT

from .conftest import Outcome

Command = Callable[..., Outcome]


def test_help_lists_commands(command: Command) -> None:
    for argv in ([], ["--help"], ["-h"]):
        outcome = command(*argv)
        assert outcome.status == 0
        assert all(f"  {verb} " in outcome.out for verb in BUILTIN_COMMANDS)
        assert "contraport demo" in outcome.out


def test_version(command: Command) -> None:
    assert command("--version") == (0, f"contraport {__version__}\n", "")


def test_rejects_unknown_command(command: Command) -> None:
    outcome = command("trian")
    assert outcome.status == 2
    assert outcome.err.startswith("contraport: command: ")
    assert "'train'" in outcome.err


def test_unknown_command_counts_the_listed_ones(command: Command) -> None:
    listed = re.findall(r"^  ([a-z-]+)  ", command("--help").out.split("options:")[0], re.MULTILINE)
    assert f" {len(listed)} known names " in command("nosuch").err


def test_help_has_groups_in_order(command: Command) -> None:
    headings = [line.removesuffix(":") for line in command("--help").out.splitlines() if line.endswith(":")]
    assert tuple(headings[: len(get_args(CommandGroupName))]) == get_args(CommandGroupName)


@pytest.mark.parametrize("verb", BUILTIN_COMMANDS)
def test_help_has_usage_and_examples(command: Command, verb: str) -> None:
    outcome = command(verb, "--help")
    assert outcome.status == 0
    assert outcome.out.startswith(f"usage: contraport {verb} ")
    assert all(example in outcome.out for example in get_command(verb).examples)
    assert "known subclasses" not in outcome.out


@pytest.mark.parametrize("verb", BUILTIN_COMMANDS)
def test_help_all_has_all_options(command: Command, verb: str) -> None:
    outcome = command(verb, "--help_all")
    assert outcome.status == 0
    options = get_command(verb).options_by_name
    assert all(name in outcome.out for name in options)
    required = [name for name, option in options.items() if option.required and not option.is_cli_positional]
    assert outcome.out.count("(required)") == len(required)


def test_help_has_description_and_default(command: Command) -> None:
    text = " ".join(command("train", "--help_all").out.split())
    assert re.search(r"--epochs EPOCHS [^(]+\(default: 10\)", text)
    assert "--resume" in text
    assert re.search(r"--seed SEED [^(]+\(default: 0\)", text)
    assert all(f" --{name} " in text for name in TRAIN_OPTIONS)
    first = {option.group: name for name, option in reversed(TRAIN_OPTIONS.items())}
    places = [text.index(f" {heading}: --{name} ") for heading, name in reversed(first.items())]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", [verb for verb in BUILTIN_COMMANDS if get_command(verb).short_help_options])
def test_short_help_has_common_options_only(command: Command, verb: str) -> None:
    text = command(verb, "--help").out
    common, options = get_command(verb).short_help_options, get_command(verb).options_by_name
    assert {name for name in options if f"\n  --{name}" in text} == set(common)
    assert f"{len(options) - len(common)} more options: contraport {verb} --help_all" in text


def test_options_of_a_command_come_before_shared_ones(command: Command) -> None:
    text = command("neighbors", "--help").out
    places = [text.index(f"\n  --{name}") for name in ("query", "top", "run", "device", "page", "trust_remote_code")]
    assert places == sorted(places)


def test_help_fits_80_columns(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for verb in BUILTIN_COMMANDS:
        text, _, _ = command(verb, "--help_all").out.partition("\nexamples:")
        assert all(len(line) < 80 for line in text.splitlines()), verb
        assert not any(sign in text for sign in ("%%", "``", "\b", "('"))


@pytest.mark.parametrize(("what", "name"), [("objectives", "gca-uot"), ("encoders", "small-cnn"), ("data", "digits")])
def test_list(command: Command, what: str, name: str) -> None:
    outcome = command("list", what)
    assert outcome.status == 0
    assert name in outcome.out


def test_module_runs_the_command() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "contraport", "--version"], capture_output=True, text=True, check=True
    )
    assert completed.stdout == f"contraport {__version__}\n"


ABORTS_AT_TEARDOWN = """
import atexit, os, sys
from contraport.cli import entry_point

class AbortsAtTeardown:
    def __del__(self, abort=os.abort):
        abort()

kept = AbortsAtTeardown()
atexit.register(print, "exit functions run")
sys.argv = ["contraport", *sys.argv[1:]]
entry_point()
"""


@pytest.mark.parametrize(("argument", "status"), [("--version", 0), ("no-command", 2)])
def test_torchrun_gets_the_exit_status_if_teardown_aborts(argument: str, status: int) -> None:
    line = [sys.executable, "-c", ABORTS_AT_TEARDOWN, argument]
    environment = {**os.environ, "TORCHELASTIC_RUN_ID": "1"}
    completed = subprocess.run(line, capture_output=True, text=True, env=environment, timeout=TIMEOUT, check=False)
    assert completed.returncode == status
    assert "exit functions run" in completed.stdout
