"""CPU seconds of help, lists and input errors of the command line, relative to ``import torch`` in the same run.

Each command is a process of its own; CPU seconds are those of user and system. Commands take turns, and medians are
taken over the turns.

    python -m benchmarks.startup [--repeats 7] [--out benchmarks/results/startup.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.engine import machine
from contraport.cli.commands import BUILTIN_COMMANDS
from contraport.cli.utility_command_options import LIST_NAMES

TORCH = "import torch"
COMMANDS = (
    "--version",
    "--help",
    *(f"{verb} --help" for verb in BUILTIN_COMMANDS),
    *(f"list {what}" for what in LIST_NAMES),
    "trian",
    "train --epohs 3",
    "train --epochs many",
    "train --recipe mocco",
    "evaluate runs/photos --neighbors 0",
)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/startup.json"))
    options = parser.parse_args(arguments)
    lines = {TORCH: ["-c", TORCH]} | {f"contraport {one}": ["-m", "contraport", *one.split()] for one in COMMANDS}
    turns: dict[str, list[float]] = {name: [] for name in lines}
    for turn in range(options.repeats + 1):
        for name, line in lines.items():
            seconds = cpu_seconds([sys.executable, *line])
            if turn:  # the first reads the files from the disk
                turns[name].append(seconds)
    seconds = {name: statistics.median(measured) for name, measured in turns.items()}
    shares = {name: value / seconds[TORCH] for name, value in seconds.items()}
    print_table(seconds, shares)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine(), "repeats": options.repeats, "cpu_seconds": seconds, "shares": shares}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {options.out}")


def cpu_seconds(line: list[str]) -> float:
    """Return the user and system seconds of a process, whatever its exit status."""
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 2):  # 2 is a mistake of the user's, which some commands here are
        raise RuntimeError(f"{' '.join(line)} ended with status {process.returncode}")
    return used.ru_utime + used.ru_stime


def print_table(seconds: dict[str, float], shares: dict[str, float]) -> None:
    table = Table(title="CPU seconds to start")
    table.add_column("command")
    for heading in ("seconds", f"of {TORCH}"):
        table.add_column(heading, justify="right")
    for name, value in seconds.items():
        table.add_row(name, f"{value:.2f}", f"{shares[name]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
