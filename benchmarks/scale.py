"""Time and peak memory of commands by the number of rows.

Each measurement has a process of its own, with one thread and limits on CPU seconds and memory; a case that reaches one
of them is recorded as such, and larger sizes are left out. Rows are vectors of random clusters in a latent space of 24
dimensions, with noise; the second view of a fifth of the pairs is shuffled. The machine may be shared, so CPU seconds
count; wall seconds are recorded too. The peak is that of all memory of the process, data and libraries included, from
the start of the command. The exponent is that of the growth since the size before.

    python -m benchmarks.scale [--cases audit ...] [--rows 10000 100000] [--widths 64]
        [--seconds 900] [--gigabytes 8] [--out benchmarks/results/scale.json]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from rich.console import Console
from rich.table import Table
from sklearn.metrics import roc_auc_score

import contraport
from benchmarks.engine import machine
from contraport import hard_negatives
from contraport.auditing import result, rounds_excluding_suspects
from contraport.auditing.pairs import paired_features

LATENT, SHUFFLED = 24, 0.2

_audit = importlib.import_module("contraport.auditing.audit")  # the package has a function of this name
AUDIT_PARTS = {
    "scores": (rounds_excluding_suspects, "score_pairs"),
    "share": (rounds_excluding_suspects, "estimate_noise_rate"),
    "partners": (_audit, "propose_partners"),
    "files": (result.Audit, "save"),
    "page": (_audit, "write_audit_page"),
}
"""Functions whose CPU seconds are counted apart."""


def write_pairs(path: Path, items: int, width: int, *, seed: int = 0) -> np.ndarray:
    """Write pairs of vectors with class labels to an .npz; return which pairs are wrong."""
    random = np.random.default_rng(seed)
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


def write_views(path: Path, arrays: dict[str, np.ndarray], *, as_numbers: bool = False) -> None:
    """Write arrays to a file of the format of its suffix; vectors in a table are lists, or one column per number."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".npy":
        np.save(path, *arrays.values())
    else:
        columns: dict[str, Any] = {}
        for name, array in arrays.items():
            if as_numbers:
                columns |= {f"{name}.{k}": column for k, column in enumerate(array.T)}
            elif array.ndim == 2:
                columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.shape[1])
            else:
                columns[name] = array
        pyarrow.parquet.write_table(pa.table(columns), path)


def measure_audit(folder: Path, items: int, width: int, data: str = "pairs.npz") -> Callable[[], dict[str, float]]:
    """Prepare an audit of frozen vectors with better partners, files and page; its parts are measured apart."""
    is_wrong = write_pairs(folder / "pairs.npz", items, width)
    if data != "pairs.npz":
        with np.load(folder / "pairs.npz") as file:
            write_views(folder / data, dict(file))
    parts = dict.fromkeys(AUDIT_PARTS, 0.0)
    for part, (holder, name) in AUDIT_PARTS.items():
        setattr(holder, name, count_seconds(getattr(holder, name), parts, part))

    def run() -> dict[str, Any]:
        audit = contraport.audit(data=folder / data, method="frozen", out=folder / "audit", progress=False)
        auroc = float(roc_auc_score(~is_wrong, audit.scores))
        return {"auroc": auroc, "rate": audit.noise_rate, "parts": parts}

    return run


def count_seconds(function: Callable[..., Any], parts: dict[str, float], part: str) -> Callable[..., Any]:
    """Return a function that adds the CPU seconds of its calls to a part."""

    @functools.wraps(function)
    def counted(*arguments: Any, **options: Any) -> Any:
        started = time.process_time()
        try:
            return function(*arguments, **options)
        finally:
            parts[part] += time.process_time() - started

    return counted


def measure_exact_audit(folder: Path, items: int, width: int) -> Callable[[], dict[str, float]]:
    paired_features.MAX_EXACT_NEIGHBOR_ITEMS = items
    return measure_audit(folder, items, width)


def measure_features(call: Callable[..., Any], **options: Any) -> Callable[[Path, int, int], Callable[[], Any]]:
    """Return a case that calls a command with features in an .npy file."""

    def prepare(folder: Path, items: int, width: int) -> Callable[[], Any]:
        write_pairs(folder / "pairs.npz", items, width)
        with np.load(folder / "pairs.npz") as file:
            np.save(folder / "features.npy", file["view0"])
        arguments = {name: folder / value if name == "index" else value for name, value in options.items()}
        return lambda: call(folder / "features.npy", device="cpu", **arguments)

    return prepare


def measure_mining(folder: Path, items: int, width: int) -> Callable[[], Any]:
    """Prepare the mining of four negatives of each pair, by features of both views in one space."""
    write_pairs(folder / "pairs.npz", items, width)
    with np.load(folder / "pairs.npz") as file:
        first = file["view0"]
    # The second view is the first with noise, so that a pair is similar, but other items of its cluster are more so.
    noise = 0.7 * np.random.default_rng(1).standard_normal(first.shape, dtype=np.float32)
    np.save(folder / "features.npy", np.stack([first, first + noise], axis=1))
    rule = {"k": 4, "relative_margin": 0.05}
    return lambda: contraport.mine(
        folder / "features.npy", data=folder / "pairs.npz", out=folder / "negatives.parquet", device="cpu", **rule
    )


def measure_exact_mining(folder: Path, items: int, width: int) -> Callable[[], Any]:
    hard_negatives.MAX_EXACT_PAIRS = items**2
    return measure_mining(folder, items, width)


def measure_run(call: Callable[[Any, Path, Path], Any]) -> Callable[[Path, int, int], Callable[[], Any]]:
    """Return a case that calls a command with a run, trained on few pairs, and with many pairs."""

    def prepare(folder: Path, items: int, width: int) -> Callable[[], Any]:
        write_pairs(folder / "few.npz", 2_000, width)
        write_pairs(folder / "pairs.npz", items, width)
        run = contraport.train(data=folder / "few.npz", epochs=1, out=folder / "run", progress=False, device="cpu")
        return lambda: call(run, folder / "pairs.npz", folder)

    return prepare


def measure_format(name: str, **options: Any) -> Callable[[Path, int, int], Callable[[], Any]]:
    """Return a case that embeds one view from a file of this name; the model is trained on few vectors."""

    def prepare(folder: Path, items: int, width: int) -> Callable[[], Any]:
        write_pairs(folder / "pairs.npz", items, width)
        with np.load(folder / "pairs.npz") as file:
            vectors = file["view0"]
        np.save(folder / "few.npy", vectors[:2_000])
        write_views(folder / name, {"x": vectors}, **options)
        run = contraport.train(data=folder / "few.npy", epochs=1, out=folder / "run", progress=False, device="cpu")
        return lambda: contraport.embed(run, data=folder / name, out=folder / "features.npz", progress=False)

    return prepare


def measure_evaluation(*metrics: str) -> Callable[[Path, int, int], Callable[[], Any]]:
    """Return a case that evaluates a run by some metrics on a fifth of the rows, with the others for training."""
    return measure_run(
        lambda run, data, folder: contraport.evaluate(
            run, data=data, metrics=metrics, alone=True, progress=False, device="cpu"
        )
    )


def measure_comparison(folder: Path, items: int, width: int) -> Callable[[], Any]:
    """Prepare a comparison of two objectives, each trained for two epochs with one seed, by linear probe and kNN."""
    write_pairs(folder / "pairs.npz", items, width)
    options: dict[str, Any] = {"seeds": 1, "epochs": 2, "metrics": ["linear_probe", "knn"], "device": "cpu"}
    return lambda: contraport.compare(
        data=[folder / "pairs.npz"],
        objectives=["info-nce", "gca-ince"],
        out=folder / "compare",
        progress=False,
        **options,
    )


CASES: dict[str, Callable[[Path, int, int], Callable[[], Any]]] = {
    "audit": measure_audit,
    "audit, exact neighbors": measure_exact_audit,
    "audit, .parquet": functools.partial(measure_audit, data="pairs.parquet"),
    "neighbors": measure_features(contraport.neighbors, query=0),
    "neighbors, new index": measure_features(contraport.neighbors, query=0, index="features.faiss"),
    "cluster": measure_features(contraport.cluster, k=100),
    "duplicates": measure_features(contraport.duplicates),
    "duplicates, new index": measure_features(contraport.duplicates, index="features.faiss"),
    "mine": measure_mining,
    "mine, exact": measure_exact_mining,
    "embed": measure_run(
        lambda run, data, folder: contraport.embed(run, data=data, out=folder / "features.npz", progress=False)
    ),
    "embed, .npz": measure_format("vectors.npz"),
    "embed, .npy": measure_format("vectors.npy"),
    "embed, .parquet of lists": measure_format("vectors.parquet"),
    "embed, .parquet of numbers": measure_format("vectors.parquet", as_numbers=True),
    "evaluate, linear probe": measure_evaluation("linear_probe"),
    "evaluate, kNN": measure_evaluation("knn"),
    "evaluate, retrieval": measure_evaluation("recall@1"),
    "evaluate, clusters": measure_evaluation("nmi"),
    "compare, 2 trainings": measure_comparison,
}


def measure(name: str, items: int, width: int, limits: tuple[int, int]) -> dict[str, float]:
    """Measure a case in this process: CPU seconds, wall seconds, gigabytes, and what an audit returns.

    The limits are CPU seconds and gigabytes. The gigabytes are those before the command, with the libraries, and at the
    peak; both include files that are mapped to memory. The own memory does not, and grows from the start of the
    command; its peak is sampled.
    """
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_DATA, (limits[1] * 10**9,) * 2)
    with tempfile.TemporaryDirectory() as folder:
        run = CASES[name](Path(folder), items, width)
        pa.default_memory_pool().release_unused()
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew: that of the preparation does not count
        before = read_gigabytes("VmRSS")
        started, wall = time.process_time(), time.perf_counter()
        resource.setrlimit(resource.RLIMIT_CPU, (round(started) + limits[0], resource.RLIM_INFINITY))
        with peak_of_own_memory() as own:
            results_of = run()
        seconds = {"seconds": time.process_time() - started, "wall": time.perf_counter() - wall}
        memory = {"gigabytes": read_gigabytes("VmHWM"), "before": before, "own": max(own) - own[0]}
        return seconds | memory | (results_of if "audit" in name else {})


@contextlib.contextmanager
def peak_of_own_memory(seconds: float = 0.02) -> Iterator[list[float]]:
    """Sample the gigabytes of this process that are no mapped files; yield the samples, the first from before."""
    samples, stopped = [read_gigabytes("RssAnon")], threading.Event()

    def sample() -> None:
        while not stopped.wait(seconds):
            samples.append(read_gigabytes("RssAnon"))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        stopped.set()
        thread.join()


def read_gigabytes(field: str) -> float:
    """Read a field of the memory status of this process."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status[field].split()[0]) * 1024 / 1e9


def measure_apart(name: str, items: int, width: int, limits: tuple[int, int]) -> dict[str, Any]:
    """Measure a case in a process of its own; return its row, with a note instead of numbers if it hit a limit."""
    command = [sys.executable, "-m", "benchmarks.scale", "--measure", "--cases", name]
    command += ["--rows", str(items), "--widths", str(width)]
    command += ["--seconds", str(limits[0]), "--gigabytes", str(limits[1])]
    row = {"case": name, "width": width, "rows": items}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode == 0:
        return row | json.loads(done.stdout.splitlines()[-1])
    if done.returncode == -signal.SIGXCPU:
        return row | {"note": f"over {limits[0]} s"}
    if "MemoryError" in done.stderr or "can't allocate memory" in done.stderr:
        return row | {"note": f"over {limits[1]} GB"}
    raise RuntimeError(f"{name}, {items} rows: {done.stderr[-2_000:]}")


def print_table(results: list[dict[str, Any]]) -> None:
    table = Table("case", "width", "rows", "CPU s", "exponent", "peak GB", "AUROC")
    for row in results:
        if "note" in row:
            table.add_row(row["case"], str(row["width"]), f"{row['rows']:,}", row["note"])
            continue
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
    parser.add_argument("--seconds", type=int, default=900, help="Limit of the CPU seconds of a measurement.")
    parser.add_argument("--gigabytes", type=int, default=8, help="Limit of its memory.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scale.json"))
    parser.add_argument("--measure", action="store_true", help="Measure one case in this process and print it.")
    options = parser.parse_args(arguments)
    limits = options.seconds, options.gigabytes
    if options.measure:
        print(json.dumps(measure(options.cases[0], options.rows[0], options.widths[0], limits)))
        return
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else []
    for name in options.cases:
        for width in options.widths:
            for items in options.rows:
                row = measure_apart(name, items, width, limits)
                print(json.dumps(row), flush=True)
                results = [r for r in results if (r["case"], r["width"], r["rows"]) != (name, width, items)] + [row]
                results.sort(key=lambda r: (list(CASES).index(r["case"]), r["width"], r["rows"]))
                options.out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
                if "note" in row:
                    break
    print_table(results)


if __name__ == "__main__":
    main()
