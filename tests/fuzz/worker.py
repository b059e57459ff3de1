"""One process that bears case after case; its parent hears when each begins and how it ended.

A line of its input is ``[kind, number, seed]``; a line of its output, in the file descriptor that it was given, is
``[number]`` when the case begins and a report when it has ended.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import stat
import sys
import time
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from contraport.cli import main as contraport
from tests.disk import largest_file

MEMORY = 6 * 2**30
NOTED = 2_000
PATIENCE = 30.0
"""Seconds that a second command may take longer than the first."""

Tree = dict[str, str]


def main(folder: str, answers: int) -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    from .cases import make_case
    from .template import make_template

    root = Path(folder)
    template, room = root / "template", root / "room"
    said = [os.open(root / name, os.O_RDWR | os.O_CREAT | os.O_APPEND) for name in ("out", "err")]
    for number, descriptor in enumerate(said, start=1):
        os.dup2(descriptor, number)
    with os.fdopen(answers, "w") as answer:

        def tell(*what: Any) -> None:
            answer.write(json.dumps(what) + "\n")
            answer.flush()

        if not template.exists():
            (root / "making").mkdir()
            os.chdir(root / "making")
            make_template()
            os.replace(root / "making", template)
        gc.freeze()  # so that to collect what a case leaves takes little
        tell("ready")
        for line in sys.stdin:
            kind, number, seed = json.loads(line)
            os.chdir(root)
            _remove(room)
            shutil.copytree(template, room, symlinks=True)
            os.chdir(room)
            for descriptor in said:
                os.ftruncate(descriptor, 0)
            case = make_case(kind, number, seed)
            before = _tree(room)
            tell("begun", case.argv, case.row)
            second = None if case.beside is None else _begin(case.beside, root / "beside")
            with nullcontext() if case.largest is None else largest_file(case.largest):
                status, err = _run(case.argv, root / "err")
            beside = None if second is None else _end(second, root / "beside")
            lost = sorted(path for path, content in before.items() if _tree_of(room / path) != content)
            tell(
                "ended",
                {
                    "status": status,
                    "err": err,
                    "beside": beside,
                    "after": None if case.after is None else _run(case.after, root / "err"),
                    "lost": [path for path in lost if case.changes is None or not path.startswith(case.changes)],
                    "half": sorted(set(_temporary(room)) - set(before)),
                    "expected": case.status,
                    "children": len(multiprocessing.active_children()),
                    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                },
            )


def _run(argv: list[str], err: Path) -> tuple[int | str, str]:
    """Run a command, and return its status and what it said on the standard error, which is a file."""
    os.truncate(err, 0)
    try:
        status: int | str = contraport(argv)
    except BaseException:
        status = traceback.format_exc()[-NOTED:]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    return status, err.read_text(errors="replace")


def _begin(argv: list[str], said: Path) -> int:
    """Run a command in a process beside this one, and return its number."""
    said.write_text("")
    child = os.fork()
    if child == 0:
        os.dup2(os.open(said, os.O_RDWR | os.O_APPEND), 2)
        status, _ = _run(argv, said)
        if isinstance(status, str):
            os.write(2, status.encode())
            status = 70
        os._exit(status)
    return child


def _end(child: int, said: Path) -> tuple[int | str, str]:
    """Return the status of such a process, and what it said."""
    deadline = time.monotonic() + PATIENCE
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "did not end", said.read_text(errors="replace")
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1]), said.read_text(errors="replace")


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _tree(folder: Path) -> Tree:
    return {str(path.relative_to(folder)): _tree_of(path) for path in folder.rglob("*")}


def _tree_of(path: Path) -> str:
    """Return what stands at a path: the kind of file, and the content of a regular one."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    return hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else str(stat.S_IFMT(mode))


def _temporary(folder: Path) -> list[str]:
    """Return the hidden files and folders: such are those that a file is written to before it takes its place."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
