"""What a newcomer writes to add a verb, in a package of their own: its options and where its function is; no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

VERB = '''
from dataclasses import dataclass, field

from contraport.options import Options, known, option, whole
from contraport.command import Command


@dataclass(frozen=True, kw_only=True)
class CountOptions(Options):
    """What `contraport count` is asked."""

    file: str = field(kw_only=False, metadata=known("the file."))
    least: int = option(1, "only lines of so many letters.", check=whole(0))


VERB = Command(
    CountOptions,
    "scratch_count:count",
    "Count the lines of a file.",
    about="Blank lines too.",
    examples=("contraport count notes.txt",),
    show="builtins:print",
)
'''
FUNCTION = '''
from pathlib import Path

from scratch_verb import VERB, CountOptions


@VERB.with_signature
def count(given):
    """Return how many lines a file has.

    Raises:
        OSError: there is no such file.
    """
    asked = CountOptions(**given)
    return sum(len(line) >= asked.least for line in Path(asked.file).read_text().splitlines())
'''
ENTRY_POINTS = """
[contraport.commands]
count = scratch_verb:VERB
broken = scratch_absent:VERB
wrong = scratch_verb:CountOptions
train = scratch_verb:VERB
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The folder of an installed package that brings verbs."""
    (tmp_path / "scratch_verb.py").write_text(VERB)
    (tmp_path / "scratch_count.py").write_text(FUNCTION)
    about = tmp_path / "scratch-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scratch\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "notes.txt").write_text("one\n\nthree\n")
    return tmp_path


def run(installed: Path, code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = [sys.executable, "-c", f"import sys; {code}", *argv]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(line, capture_output=True, text=True, cwd=installed, env=environment, timeout=60, check=False)


def command(installed: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return run(installed, "from contraport.cli import main; sys.exit(main(sys.argv[1:]))", *argv)


def test_a_verb_of_ones_own_is_listed_explained_and_run(installed: Path) -> None:
    assert re.search(r"^  count +\(of the package scratch\)$", command(installed, "--help").stdout, re.MULTILINE)
    told = " ".join(command(installed, "count", "--help").stdout.split())
    assert told.startswith("usage: contraport count FILE [options] Count the lines of a file. Blank lines too.")
    assert "--least LEAST only lines of so many letters. (default: 1)" in told
    assert "examples: contraport count notes.txt" in told
    done = command(installed, "count", "notes.txt", "--least", "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("cuont notes.txt", "verb: unknown name 'cuont'; did you mean 'count'?"),
        ("count notes.txt --leats 1", "option: unknown name '--leats'; did you mean '--least'?"),
        ("count notes.txt --least -1", "least: expected a whole number from 0 on, got -1"),
        ("count", "required: file"),
        ("count absent.txt", "absent.txt"),
        ("broken", "verb: 'broken' of the package scratch cannot be imported from scratch_absent:VERB: ModuleNotFound"),
        ("wrong", "expected scratch_verb:CountOptions to be a contraport.command.Command, got type"),
    ],
)
def test_a_mistake_costs_one_line(installed: Path, argv: str, message: str) -> None:
    done = command(installed, *argv.split())
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert message in done.stderr


def test_its_function_has_its_options_as_arguments(installed: Path) -> None:
    code = "import scratch_count, inspect; print(inspect.signature(scratch_count.count)); print(scratch_count.count('notes.txt')); print(scratch_count.count.__doc__)"  # noqa: E501
    signature, two, *documentation = run(installed, code).stdout.splitlines()
    assert (signature, two) == ("(file: str, *, least: int = 1)", "2")
    assert "    least: only lines of so many letters." in documentation


def test_it_is_imported_for_nothing_else_and_takes_no_name_of_ours(installed: Path) -> None:
    code = "from contraport.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    for argv in (["--help"], ["train", "--help"], ["list", "data"]):
        done = run(installed, code, *argv)
        assert not {"scratch_verb", "scratch_count"} & set(done.stdout.splitlines()[-1].split())
    assert "--objective" in command(installed, "train", "--help").stdout
