"""Writes docs/reliability.md from the results of `python -m tests.fuzz`, for `make docs`."""

from __future__ import annotations

from typing import Any

from results import MEASURED, load

KINDS = {
    "configurations": (
        "Random configurations",
        "A command with random options on the command line or in a YAML file, plausible ones and some invalid; most "
        "combinations are invalid.",
    ),
    "run folders": (
        "Corrupt run folders",
        "A file of a trained and evaluated run is truncated, overwritten, removed, or replaced by a folder, a pipe or "
        "a link. Then a command has to resume, overwrite, evaluate, embed, export or show the run.",
    ),
    "data": (
        "Corrupt data",
        "Data files of every format are damaged in the same way, then used for training or embedding.",
    ),
    "pairs and features": (
        "Audits and searches",
        "A command on pairs or on embedded features with random options, as above. In four of ten cases the file is "
        "corrupt.",
    ),
    "full disk": (
        "Full disks",
        "No file can grow beyond a random size while a command writes. The same command, or its resumption, must then "
        "succeed.",
    ),
    "two commands": (
        "Two commands on one folder",
        "Two commands fill one folder, or write one file, at the same time. A third that uses it then has to succeed.",
    ),
    "names": (
        "Hostile names",
        "Items, classes or files have names that look like markup, formulas, paths or code.",
    ),
    "changed data": (
        "Data that have changed",
        "Rows are removed, added or altered between a command and one that takes up its work: each must be refused.",
    ),
    "repeated items": (
        "Repeated items",
        "Rows, views of pairs or image files are there several times. The training and its evaluation must succeed.",
    ),
}
COLUMNS = ("tried", "done", "refused", "stopped", "wrong")


def reliability() -> str:
    """Return the page on reliability."""
    measured = load(MEASURED / "reliability.json")
    result = {kind: measured["kinds"][kind] for kind in KINDS if kind in measured["kinds"]}
    rows = "\n".join(_row(kind, one) for kind, one in result.items())
    about = "\n".join(f"- **{KINDS[kind][0]}**: {KINDS[kind][1]}" for kind in result)
    wrong = "".join(f"\n\n```\n{case}\n```" for one in result.values() for case in one["wrong"])
    return f"""# Reliability

Measured by `python -m tests.fuzz`. On {", ".join(measured["machine"].values())};
seed {measured["seed"]}. One process runs the commands one after the other, each limited to 6 GiB and
{measured["seconds_each"]} s. `make slow` runs the same cases, and `make test` runs a twentieth of them.

A command can end in four ways:

- *done*: status 0; a damaged file was not needed, or can be read;
- *refused*: status 2, with one line that says what is wrong, and all files unchanged (on a full disk, those
  that it was not writing);
- *stopped*: status 1, with one line, because a training run diverged or there was not enough memory;
- *wrong*: anything else, such as a traceback, a signal, too much time, a file that a refused command changed or lost, a
  half-written file, or a process left behind.

| cases | {" | ".join(COLUMNS)} | longest, s | memory, MiB |
|---|{"---:|" * (len(COLUMNS) + 2)}
{rows}

{about}

The cases by command and file are in `benchmarks/results/reliability.json`.{wrong}
"""


def _row(kind: str, measured: dict[str, Any]) -> str:
    """Return the table row of a kind of cases: how they ended, the longest, and the most memory."""
    ends = (sum(row.get(column, 0) for row in measured["rows"].values()) for column in COLUMNS)
    cells = [
        KINDS[kind][0],
        *(f"{end:,}" for end in ends),
        f"{measured['longest_seconds']}",
        f"{measured['memory_mib']:,}",
    ]
    return f"| {' | '.join(cells)} |"
