from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from contraport.cli.commands import BUILTIN_COMMANDS
from contraport.cli.completion import SCRIPTS_BY_SHELL, list_completions
from tests import TIMEOUT

from .conftest import Outcome


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ([""], sorted(BUILTIN_COMMANDS)),
        (["--v"], ["--version"]),
        (["--print_completion", "z"], ["zsh"]),
        (["train", "--encoder_"], ["--encoder_lr_scale"]),
        (["train", "--recipe", "moco"], ["moco", "moco-v3"]),
        (["train", "--amp", ""], ["false", "true"]),
        (["evaluate", "runs/a", "--checkpoints", ""], ["all", "last"]),
        (["list", "me"], ["metrics"]),
        (["list", "--j"], ["--json"]),
        (["evaluate", "--al"], ["--all", "--alone"]),
        (["embed", "runs/"], []),
        (["no-such-verb", "--"], []),
        (["train", "--data", "dig"], ["digits"]),
    ],
)
def test_completions_of_each_position(words: list[str], offered: list[str]) -> None:
    assert list_completions(words) == offered


def test_rejects_an_unknown_shell(command) -> None:
    result: Outcome = command("--print_completion", "tcsh")
    assert result.status == 2
    assert "bash, fish, zsh" in result.err
    assert command("--print_completion").status == 2


ASKED = {
    "bash": "{script}\nCOMP_WORDS=(contraport train --recipe moco-); COMP_CWORD=3; _contraport; echo ${{COMPREPLY[@]}}",
    "fish": "{script}\ncomplete -C 'contraport train --recipe moco-'",
    "zsh": "autoload -U compinit; compinit -D\n{script}\ncompadd() {{ print -r -- ${{(P)@[-1]}} }}\n"
    "words=(contraport train --recipe moco-); CURRENT=4; _contraport",
}


@pytest.mark.parametrize("shell", SCRIPTS_BY_SHELL)
def test_shells_complete_options(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    program = tmp_path / "contraport"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m contraport "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = [shell, *(["-f"] if shell == "zsh" else []), "-c", ASKED[shell].format(script=SCRIPTS_BY_SHELL[shell])]
    completed = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=TIMEOUT, check=False
    )
    assert completed.stdout.split() == ["moco-v3"], completed.stderr
