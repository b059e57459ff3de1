"""Commands of other packages, from a module with the options and the path of the function."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import TIMEOUT

VERB = '''
from dataclasses import dataclass, field

from contraport.options import BaseOptions, int_in_range, option, option_metadata
from contraport.options import Command


@dataclass(frozen=True, kw_only=True)
class CountOptions(BaseOptions):
    """Options of `contraport count`."""

    file: str = field(kw_only=False, metadata=option_metadata("The file."))
    least: int = option(1, "Minimum length of a line.", check=int_in_range(0))


VERB = Command(
    CountOptions,
    "scratch_count:count",
    "Count the lines of a file.",
    details="Blank lines too.",
    examples=("contraport count notes.txt",),
    printer_path="builtins:print",
)
'''
FUNCTION = '''
from pathlib import Path

from scratch_verb import VERB, CountOptions


@VERB.with_option_parameters
def count(options):
    """Count the lines of a file.

    Raises:
        OSError: there is no such file.
    """
    count_options = CountOptions(**options)
    return sum(len(line) >= count_options.least for line in Path(count_options.file).read_text().splitlines())
'''
ENTRY_POINTS = """
[contraport.commands]
count = scratch_verb:VERB
broken = scratch_absent:VERB
wrong = scratch_verb:CountOptions
train = scratch_verb:VERB
"""


@pytest.fixture
def package_folder(tmp_path: Path) -> Path:
    """Folder of an installed package with commands."""
    (tmp_path / "scratch_verb.py").write_text(VERB)
    (tmp_path / "scratch_count.py").write_text(FUNCTION)
    about = tmp_path / "scratch-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: scratch\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "notes.txt").write_text("one\n\nthree\n")
    return tmp_path


def run(package_folder: Path, code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(package_folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    line = [sys.executable, "-c", f"import sys; {code}", *argv]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(
        line, capture_output=True, text=True, cwd=package_folder, env=environment, timeout=TIMEOUT, check=False
    )


def command(package_folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return run(package_folder, "from contraport.cli import main; sys.exit(main(sys.argv[1:]))", *argv)


def test_command_of_another_package_is_listed_explained_and_run(package_folder: Path) -> None:
    assert re.search(r"^  count +\(of the package scratch\)$", command(package_folder, "--help").stdout, re.MULTILINE)
    help_text = " ".join(command(package_folder, "count", "--help").stdout.split())
    assert help_text.startswith("usage: contraport count FILE [options] Count the lines of a file. Blank lines too.")
    assert "--least LEAST Minimum length of a line. (default: 1)" in help_text
    assert "examples: contraport count notes.txt" in help_text
    completed = command(package_folder, "count", "notes.txt", "--least", "0")
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "3\n", "")


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        ("cuont notes.txt", "'count'"),
        ("count notes.txt --leats 1", "'--least'"),
        ("count notes.txt --least -1", "least: "),
        ("count", "file: "),
        ("count absent.txt", "absent.txt"),
        ("broken", "scratch_absent:VERB"),
        ("wrong", "scratch_verb:CountOptions"),
    ],
)
def test_reports_a_mistake_on_one_line(package_folder: Path, argv: str, part: str) -> None:
    completed = command(package_folder, *argv.split())
    assert (completed.returncode, completed.stdout, completed.stderr.count("\n")) == (2, "", 1)
    assert part in completed.stderr


def test_function_has_the_options_as_parameters(package_folder: Path) -> None:
    code = "import scratch_count, inspect; print(inspect.signature(scratch_count.count)); print(scratch_count.count('notes.txt')); print(scratch_count.count.__doc__)"  # noqa: E501
    signature, two, *documentation = run(package_folder, code).stdout.splitlines()
    assert (signature, two) == ("(file: str, *, least: int = 1)", "2")
    assert "    least: Minimum length of a line." in documentation


def test_is_imported_only_when_needed_and_cannot_replace_a_builtin_command(package_folder: Path) -> None:
    code = "from contraport.cli import main; main(sys.argv[1:]); print(*sys.modules)"
    for argv in (["--help"], ["train", "--help"], ["list", "data"]):
        completed = run(package_folder, code, *argv)
        assert not {"scratch_verb", "scratch_count"} & set(completed.stdout.splitlines()[-1].split())
    assert "--objective" in command(package_folder, "train", "--help").stdout
