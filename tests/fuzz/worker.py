"""Worker process of the fuzz tests: runs one case after another and reports to its parent.

A line of its input is ``[kind, number, seed]``. Its output, to a given file descriptor, has a line
``["begun", argv, row]`` when a case starts, and a line ``["ended", report]`` when it has ended.
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
import stat
import sys
import traceback
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from contraport.cli import main as contraport
from tests.disk import limit_file_size

MEMORY = 6 * 2**30
TRACEBACK_CHARS = 2_000

Fingerprints = dict[str, str]


def main(folder: str, pipe: int) -> None:
    """Run cases until the input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    from .cases import make_case
    from .template import make_template

    root = Path(folder)
    template, work_folder = root / "template", root / "work_folder"
    streams = [os.open(root / name, os.O_RDWR | os.O_CREAT | os.O_APPEND) for name in ("out", "err")]
    for number, descriptor in enumerate(streams, start=1):
        os.dup2(descriptor, number)
    with os.fdopen(pipe, "w") as output:

        def send(*what: Any) -> None:
            output.write(json.dumps(what) + "\n")
            output.flush()

        if not template.exists():
            (root / "making").mkdir()
            os.chdir(root / "making")
            make_template()
            os.replace(root / "making", template)
        gc.freeze()  # so that garbage collection after a case is fast
        send("ready")
        for line in sys.stdin:
            kind, number, seed = json.loads(line)
            os.chdir(root)
            _remove(work_folder)
            shutil.copytree(template, work_folder, symlinks=True)
            os.chdir(work_folder)
            for descriptor in streams:
                os.ftruncate(descriptor, 0)
            case = make_case(kind, number, seed)
            before = _fingerprints(work_folder)
            send("begun", case.argv, case.row)
            second = None if case.concurrent is None else _start(case.concurrent, root / "beside")
            with nullcontext() if case.max_file_bytes is None else limit_file_size(case.max_file_bytes):
                status, err = _run(case.argv, root / "err")
            beside = None if second is None else _wait(second, root / "beside")
            lost = sorted(path for path, content in before.items() if _fingerprint(work_folder / path) != content)
            send(
                "ended",
                {
                    "status": status,
                    "err": err,
                    "beside": beside,
                    "after": None if case.next_command is None else _run(case.next_command, root / "err"),
                    "lost": [path for path in lost if case.changes is None or not path.startswith(case.changes)],
                    "half": sorted(set(_hidden_files(work_folder)) - set(before)),
                    "expected": case.status,
                    "children": len(multiprocessing.active_children()),
                    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                },
            )


def _run(argv: list[str], err: Path) -> tuple[int | str, str]:
    """Run a command, and return its status and its standard error, which is redirected to a file."""
    os.truncate(err, 0)
    try:
        status: int | str = contraport(argv)
    except BaseException:
        status = traceback.format_exc()[-TRACEBACK_CHARS:]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.collect()
    return status, err.read_text(errors="replace")


def _start(argv: list[str], output_file: Path) -> int:
    """Start a command in a child process, and return the process number."""
    output_file.write_text("")
    child = os.fork()
    if child == 0:
        os.dup2(os.open(output_file, os.O_RDWR | os.O_APPEND), 2)
        status, _ = _run(argv, output_file)
        if isinstance(status, str):
            os.write(2, status.encode())
            status = 70
        os._exit(status)
    return child


def _wait(child: int, output_file: Path) -> tuple[int | str, str]:
    """Wait for a child process, which the runner kills if it hangs, and return its status and standard error."""
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output_file.read_text(errors="replace")


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _fingerprints(folder: Path) -> Fingerprints:
    return {str(path.relative_to(folder)): _fingerprint(path) for path in folder.rglob("*")}


def _fingerprint(path: Path) -> str:
    """Return a fingerprint of a path: the checksum of a regular file, or the kind of another file."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "nothing"
    return hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else str(stat.S_IFMT(mode))


def _hidden_files(folder: Path) -> list[str]:
    """Return the hidden files and folders, to which a file is written before it is moved to its place."""
    return [str(path.relative_to(folder)) for path in folder.rglob(".*")]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
