"""Online audits before and after a change of the code: cost, detection, kept pairs and recall of the encoders.

A first call stores the outcome of each data set and seed; a call by the changed code with ``--before`` compares with
it. Printed for each data set, with the lowest and highest value over the seeds: CPU time of an audit relative to a
plain training in the same process; AUROC; estimated noise rate; recall@1 between the views of clean test pairs; share
of pairs that are kept by both or by neither; share of equal proposals of partners. With ``--noise`` also the share of
pairs that are kept by both or by neither when another seed audits the same pairs by the same code.

    python -m benchmarks.audit_change FILE [--before FILE] [--root FOLDER] [--images FOLDER] [--seeds 3]
        [--data fou-kar digits-halves fashion-halves] [--level 0.2] [--noise]
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import contraport
from benchmarks.audit import AUDIT_EPOCHS, TRAINING_OPTIONS, Cell, auroc, recall_at_1
from benchmarks.engine import machine
from contraport.runs import Run

FIGURES = ("cost", "auroc", "rate", "recall")


def measure(cell: Cell, seed: int, *, with_cost: bool) -> dict[str, Any]:
    """Audit the pairs of a cell with a seed, and train on them without an audit if `with_cost`."""
    with tempfile.TemporaryDirectory() as folder:
        plain = float("nan")
        if with_cost:
            cell._train(cell.noisy, f"{folder}/first", epochs=1)  # imports count in neither
            plain = cell._train(cell.noisy, folder, epochs=AUDIT_EPOCHS)[1]
        started = time.process_time()
        options = {"projection": TRAINING_OPTIONS["projection"], "out": f"{folder}/audit", "progress": False}
        contraport.audit(data=cell.noisy, seed=seed, **options)
        seconds = time.process_time() - started
        run = Run(f"{folder}/audit/training")
        arrays = run.pair_scores()
        return {
            "cost": seconds / plain,
            "auroc": auroc(arrays["scores"], cell.is_wrong),
            "rate": float(arrays["rate"]),
            "recall": recall_at_1(run, cell.test),
            "kept": arrays["kept"].tolist(),
            "partners": arrays["partners"].tolist(),
        }


def format_range(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def print_results(now: dict[str, Any], before: dict[str, Any], data: Sequence[str], seeds: int) -> None:
    table = Table("data", "code", *FIGURES, "kept as before", "partners as before", "kept, other seed")
    for name in data:
        for code, results in (("before", before), ("now", now)):
            runs = [results[f"{name} {seed}"] for seed in range(seeds) if f"{name} {seed}" in results]
            if not runs:
                continue
            cells = [format_range([run[figure] for run in runs]) for figure in FIGURES]
            pairs = [(run, before.get(f"{name} {seed}")) for seed, run in enumerate(runs)] if code == "now" else []
            for field in ("kept", "partners"):
                shares = [np.mean(np.array(a[field]) == np.array(b[field])) for a, b in pairs if b is not None]
                cells.append(format_range(shares) if shares else "")
            others = [(run, results.get(f"{name} {seed} other")) for seed, run in enumerate(runs)]
            shares = [np.mean(np.array(a["kept"]) == np.array(b["kept"])) for a, b in others if b is not None]
            table.add_row(name, code, *cells, format_range(shares) if shares else "")
    Console(width=190).print(table)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--data", nargs="+", default=["fou-kar", "digits-halves", "fashion-halves"])
    parser.add_argument("--level", type=float, default=0.2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--noise", action="store_true", help="Audit the pairs of each seed with another seed too.")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {"machine": machine()}
    for name, seed in itertools.product(options.data, range(options.seeds)):
        cell = Cell(name, options.level, seed, (options.root, options.images))
        results[f"{name} {seed}"] = measure(cell, seed, with_cost=True)
        if options.noise:
            results[f"{name} {seed} other"] = measure(cell, seed + 100, with_cost=False)
        options.file.write_text(json.dumps(results) + "\n")
    before = json.loads(options.before.read_text()) if options.before else {}
    print_results(results, before, options.data, options.seeds)


if __name__ == "__main__":
    main()
