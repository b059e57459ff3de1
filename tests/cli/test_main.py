from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from contraport import __version__
from contraport.cli.commands import BUILTIN_COMMANDS, find_command
from contraport.training.config import OPTIONS

from .conftest import Outcome

Command = Callable[..., Outcome]


def test_help_names_the_verbs(command: Command) -> None:
    for argv in ([], ["--help"], ["-h"]):
        outcome = command(*argv)
        assert outcome.status == 0
        assert all(f"  {verb} " in outcome.out for verb in BUILTIN_COMMANDS)
        assert "contraport demo" in outcome.out


def test_version(command: Command) -> None:
    assert command("--version") == (0, f"contraport {__version__}\n", "")


def test_an_unknown_verb(command: Command) -> None:
    outcome = command("trian")
    assert outcome.status == 2
    assert outcome.err.startswith("contraport: verb: unknown name 'trian'; did you mean 'train'?")


@pytest.mark.parametrize("verb", BUILTIN_COMMANDS)
def test_each_verb_teaches(command: Command, verb: str) -> None:
    outcome = command(verb, "--help")
    assert outcome.status == 0
    assert outcome.out.startswith(f"usage: contraport {verb} ")
    assert all(example in outcome.out for example in find_command(verb).examples)
    assert "known subclasses" not in outcome.out


@pytest.mark.parametrize("verb", BUILTIN_COMMANDS)
def test_each_verb_tells_all_options(command: Command, verb: str) -> None:
    told = command(verb, "--help_all")
    assert told.status == 0
    assert all(name in told.out for name in find_command(verb).options)


def test_help_tells_meaning_and_default(command: Command) -> None:
    text = " ".join(command("train", "--help_all").out.split())
    assert "--epochs EPOCHS passes over the data. (default: 10)" in text
    assert "--resume" in text
    assert "side in pixels" in text
    assert "what all that is random depends on. (default: 0)" in text
    assert all(f" --{name} " in text for name in OPTIONS)
    first = {option.group: name for name, option in reversed(OPTIONS.items())}
    places = [text.index(f" {heading}: --{name} ") for heading, name in reversed(first.items())]
    assert places == sorted(places)


@pytest.mark.parametrize("verb", [verb for verb in BUILTIN_COMMANDS if find_command(verb).common_options])
def test_the_short_help_has_the_usual_options_alone(command: Command, verb: str) -> None:
    text = command(verb, "--help").out
    usual, options = find_command(verb).common_options, find_command(verb).options
    assert {name for name in options if f"\n  --{name}" in text} == set(usual)
    assert f"{len(options) - len(usual)} more options: contraport {verb} --help_all" in text


def test_a_verbs_own_options_stand_before_those_it_shares(command: Command) -> None:
    text = command("neighbors", "--help").out
    places = [text.index(f"\n  --{name}") for name in ("query", "top", "run", "trust_remote_code", "device", "page")]
    assert places == sorted(places)


def test_lines_of_the_help_fit_a_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "contraport", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"contraport {__version__}\n"
