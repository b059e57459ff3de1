"""Time and peak memory of commands by the number of rows.

Each measurement has a process of its own, with one thread. Rows are vectors of random clusters in a latent space of 24
dimensions, with noise; the second view of a fifth of the pairs is shuffled. Seconds are CPU seconds of the process, as
the machine is shared; the peak is of all its memory, data and libraries included. The exponent is that of the growth
since the size before.

    python -m benchmarks.scale [--cases audit ...] [--rows 10000 100000] [--widths 64]
        [--out benchmarks/results/scale.json]
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

import contraport
from benchmarks.engine import machine
from contraport.auditing.crossfit import score_frozen_vectors
from contraport.auditing.pairs import paired_features
from contraport.data import load_unsplit

LATENT, SHUFFLED = 24, 0.2
SECONDS_LIMIT = 900


def write_pairs(path: Path, items: int, width: int) -> np.ndarray:
    """Write pairs of vectors with class labels to an .npz; return which pairs are wrong."""
    random = np.random.default_rng(0)
    centers = random.normal(size=(max(20, items // 500), LATENT))
    labels = random.integers(0, len(centers), items)
    latent = (centers[labels] + 0.6 * random.normal(size=(items, LATENT))).astype(np.float32)
    maps = random.normal(size=(2, LATENT, width)).astype(np.float32) / LATENT**0.5
    first, second = latent @ maps[0], np.tanh(latent @ maps[1])
    for start in range(0, items, 50_000):
        for view in (first, second):
            part = view[start : start + 50_000]
            part += 0.7 * random.standard_normal(part.shape, dtype=np.float32)
    wrong = random.permutation(items)[: round(SHUFFLED * items)]
    second[wrong] = second[np.roll(wrong, 1)]
    np.savez(path, view0=first, view1=second, labels=labels % 10)
    is_wrong = np.zeros(items, dtype=bool)
    is_wrong[wrong] = True
    return is_wrong


def measure_audit(folder: Path, items: int, width: int) -> Callable[[], dict[str, float]]:
    """Prepare an audit of frozen vectors: scores and noise rate, without better partners and the page."""
    is_wrong = write_pairs(folder / "pairs.npz", items, width)

    def run() -> dict[str, float]:
        pairs = load_unsplit(folder / "pairs.npz")
        *_, (result, _) = score_frozen_vectors(pairs, statistic="combined", rounds=2, seed=0)
        return {"auroc": float(roc_auc_score(~is_wrong, result.scores)), "rate": result.noise.rate}

    return run


def measure_exact_audit(folder: Path, items: int, width: int) -> Callable[[], dict[str, float]]:
    paired_features.MAX_EXACT_ITEMS = items
    return measure_audit(folder, items, width)


def measure_features(call: Callable[..., Any], **options: Any) -> Callable[[Path, int, int], Callable[[], Any]]:
    """Return a case that calls a command with features in an .npy file."""

    def prepare(folder: Path, items: int, width: int) -> Callable[[], Any]:
        write_pairs(folder / "pairs.npz", items, width)
        with np.load(folder / "pairs.npz") as file:
            np.save(folder / "features.npy", file["view0"])
        given = {name: folder / value if name == "index" else value for name, value in options.items()}
        return lambda: call(folder / "features.npy", device="cpu", **given)

    return prepare


def measure_run(call: Callable[[Any, Path, Path], Any]) -> Callable[[Path, int, int], Callable[[], Any]]:
    """Return a case that calls a command with a run, trained on few pairs, and with many pairs."""

    def prepare(folder: Path, items: int, width: int) -> Callable[[], Any]:
        write_pairs(folder / "few.npz", 2_000, width)
        write_pairs(folder / "pairs.npz", items, width)
        run = contraport.train(data=folder / "few.npz", epochs=1, out=folder / "run", progress=False, device="cpu")
        return lambda: call(run, folder / "pairs.npz", folder)

    return prepare


CASES: dict[str, Callable[[Path, int, int], Callable[[], Any]]] = {
    "audit": measure_audit,
    "audit, exact neighbors": measure_exact_audit,
    "neighbors": measure_features(contraport.neighbors, query=0),
    "cluster": measure_features(contraport.cluster, k=100),
    "duplicates": measure_features(contraport.duplicates),
    "duplicates, index": measure_features(contraport.duplicates, index="features.faiss"),
    "embed": measure_run(
        lambda run, data, folder: contraport.embed(run, data=data, out=folder / "features.npz", progress=False)
    ),
    "evaluate": measure_run(
        lambda run, data, folder: contraport.evaluate(run, data=data, test_data=data, progress=False, device="cpu")
    ),
}


def measure(name: str, items: int, width: int) -> dict[str, float]:
    """Measure a case in this process: CPU seconds, wall seconds, peak gigabytes, and what the case returns."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = CASES[name](Path(folder), items, width)
        started, wall = time.process_time(), time.perf_counter()
        found = run()
        seconds = {"seconds": time.process_time() - started, "wall": time.perf_counter() - wall}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return seconds | {"gigabytes": peak} | (found if "audit" in name else {})


def print_table(results: list[dict[str, Any]]) -> None:
    table = Table("case", "width", "rows", "CPU s", "exponent", "peak GB", "AUROC")
    for row in results:
        table.add_row(
            row["case"], str(row["width"]), f"{row['rows']:,}", f"{row['seconds']:.1f}",
            "" if (exponent := growth_exponent(results, row)) is None else f"{exponent:.2f}",
            f"{row['gigabytes']:.2f}", f"{row['auroc']:.4f}" if "auroc" in row else "",
        )  # fmt: skip
    Console(width=110).print(table)


def growth_exponent(results: list[dict[str, Any]], row: dict[str, Any]) -> float | None:
    """Return the exponent of the growth of the time since the next smaller size; None for the smallest."""
    smaller = [r for r in results if (r["case"], r["width"]) == (row["case"], row["width"]) and r["rows"] < row["rows"]]
    if not smaller:
        return None
    before = max(smaller, key=lambda r: r["rows"])
    return math.log(row["seconds"] / before["seconds"]) / math.log(row["rows"] / before["rows"])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rows", nargs="+", type=int, default=[10_000, 100_000])
    parser.add_argument("--widths", nargs="+", type=int, default=[64])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scale.json"))
    parser.add_argument("--measure", action="store_true", help="Measure one case in this process and print it.")
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options.cases[0], options.rows[0], options.widths[0])))
        return
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else []
    for name in options.cases:
        for width in options.widths:
            for items in options.rows:
                command = [sys.executable, "-m", "benchmarks.scale", "--measure", "--cases", name]
                command += ["--rows", str(items), "--widths", str(width)]
                try:
                    done = subprocess.run(command, capture_output=True, text=True, timeout=4 * SECONDS_LIMIT)
                except subprocess.TimeoutExpired:
                    print(name, width, items, "did not end", flush=True)
                    break
                if done.returncode != 0:
                    print(name, width, items, done.stderr[-2_000:], flush=True)
                    break
                row = {"case": name, "width": width, "rows": items, **json.loads(done.stdout.splitlines()[-1])}
                print(json.dumps(row), flush=True)
                results = [r for r in results if (r["case"], r["width"], r["rows"]) != (name, width, items)] + [row]
                results.sort(key=lambda r: (list(CASES).index(r["case"]), r["width"], r["rows"]))
                options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    print_table(results)


if __name__ == "__main__":
    main()
