"""Entry point of ``python -m tests.fuzz``: runs the cases and writes benchmarks/results/reliability.json."""

from __future__ import annotations

import argparse
import json
import platform
import time

import torch

import contraport

from . import __doc__ as description
from .runner import ROOT, SECONDS, run_cases, summarize
from .test_fuzz import CASES_BY_KIND

OUT = ROOT / "benchmarks" / "results" / "reliability.json"
SEED = 0


def main() -> None:
    """Run the selected cases, and print each failure when it occurs."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=description)
    parser.add_argument("--kind", choices=CASES_BY_KIND, help="one kind of cases; default: all")
    parser.add_argument("--only", type=int, help="one case of it; nothing is written")
    options = parser.parse_args()
    for kind in [options.kind] if options.kind else CASES_BY_KIND:
        start, results = time.monotonic(), []
        numbers = range(CASES_BY_KIND[kind]) if options.only is None else [options.only]
        for result in run_cases([(kind, number) for number in numbers], SEED):
            results.append(result)
            if result.wrong or options.only is not None:
                print(f"{result.outcome or 'lost'} after {result.seconds:.1f} s: {result}", flush=True)
        counts = summarize(results) | {"seconds": round(time.monotonic() - start)}
        print(f"{kind}: {json.dumps(counts, indent=1)}")
        if options.only is None:
            _write(kind, counts)


def _write(kind: str, counts: dict[str, object]) -> None:
    """Replace the results of one kind of cases in the file."""
    kinds = json.loads(OUT.read_text())["kinds"] if OUT.exists() else {}
    machine = {
        "cpu": platform.processor() or platform.machine(),
        "python": f"Python {platform.python_version()}",
        "torch": f"torch {torch.__version__}",
        "contraport": f"contraport {contraport.__version__}",
    }
    page = {"machine": machine, "seed": SEED, "seconds_each": round(SECONDS), "kinds": kinds | {kind: counts}}
    OUT.write_text(json.dumps(page, indent=1) + "\n")


if __name__ == "__main__":
    main()
