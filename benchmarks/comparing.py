"""Run suites of benchmarks/suites, one after the other, and keep what they found: python -m benchmarks.comparing.

`benchmarks/results/suites/NAME.json` is the `results.json` of the comparison, from which `make docs` writes
docs/results.md and docs/choosing.md. A suite that was stopped, or that the budget was too short for, goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import contraport
from contraport.comparing.grid import read_suite, suites_folder

RESULTS = Path("benchmarks/results/suites")


def keep(folder: Path, name: str) -> None:
    """Write what a comparison found beside what others did, without where each training is."""
    found = json.loads((folder / "results.json").read_text())
    found["cells"] = [{key: cell[key] for key in cell if key != "options"} for cell in found["cells"]]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    runnable = [file.stem for file in sorted(suites_folder().glob("*.yaml")) if "not_run" not in read_suite(file)]
    parser.add_argument("suites", nargs="*", help=f"by name, of {', '.join(runnable)}; default: all")
    parser.add_argument("--quick", action="store_true", help="the smaller grids")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--budget", help="of each suite, such as 30m")
    parser.add_argument("--root", help="the folder of named data")
    parser.add_argument("--out", type=Path, default=Path("runs/suites"))
    asked = parser.parse_args(arguments)
    given = {name: getattr(asked, name) for name in ("processes", "device", "budget", "root")}
    for name in asked.suites or runnable:
        folder = asked.out / name
        known = {key: value for key, value in given.items() if value is not None}
        contraport.compare(suite=name, quick=asked.quick, out=folder, **known)
        keep(folder, name)


if __name__ == "__main__":
    main()
