"""``python -m tests.fuzz``: all cases, and what came of them in benchmarks/results/reliability.json."""

from __future__ import annotations

import argparse
import json
import platform
import time

import torch

import contraport

from . import __doc__ as about
from .runner import ROOT, SECONDS, run_cases, summary
from .test_fuzz import MANY

OUT = ROOT / "benchmarks" / "results" / "reliability.json"
SEED = 0


def main() -> None:
    """Run what the command line asks for, and print what is wrong as it is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=about)
    parser.add_argument("--kind", choices=MANY, help="one kind of cases; default: all")
    parser.add_argument("--only", type=int, help="one case of it; nothing is written")
    given = parser.parse_args()
    for kind in [given.kind] if given.kind else MANY:
        start, results = time.monotonic(), []
        numbers = range(MANY[kind]) if given.only is None else [given.only]
        for result in run_cases([(kind, number) for number in numbers], SEED):
            results.append(result)
            if result.wrong or given.only is not None:
                print(f"{result.outcome or 'lost'} after {result.seconds:.1f} s: {result}", flush=True)
        told = summary(results) | {"seconds": round(time.monotonic() - start)}
        print(f"{kind}: {json.dumps(told, indent=1)}")
        if given.only is None:
            _write(kind, told)


def _write(kind: str, told: dict[str, object]) -> None:
    """Put what came of a kind in its place in the file."""
    kinds = json.loads(OUT.read_text())["kinds"] if OUT.exists() else {}
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
        "contraport": f"contraport {contraport.__version__}",
    }
    page = {"machine": machine, "seed": SEED, "seconds_each": round(SECONDS), "kinds": kinds | {kind: told}}
    OUT.write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
