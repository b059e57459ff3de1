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
import stat
import sys
import traceback
from pathlib import Path
from typing import Any

MEMORY = 6 * 2**30
NOTED = 2_000

Tree = dict[str, str]


def main(folder: str, answers: int) -> None:
    """Answer until the input ends."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    faulthandler.enable()
    import torch

    torch.set_num_threads(1)
    from contraport.cli import main as contraport

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
            try:
                status: int | str = contraport(case.argv)
            except BaseException:
                status = traceback.format_exc()[-NOTED:]
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            gc.collect()
            tell(
                "ended",
                {
                    "status": status,
                    "err": (root / "err").read_text(errors="replace"),
                    "lost": sorted(path for path, content in before.items() if _tree_of(room / path) != content),
                    "half": sorted(set(_temporary(room)) - set(before)),
                    "children": len(multiprocessing.active_children()),
                    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                },
            )


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
