"""Time and memory of the objectives and of other packages, in units of one matrix product.

The unit is the product X Y^T of the same views, in tiles with one reused buffer, which every exact method needs.
Times are of forward + backward, the median of interleaved rounds, so that a noisy machine is noisy for all alike; a
case is no longer measured once it has had its share of seconds. Other cases, rows and dimensions in the file stay.

    python -m benchmarks.engine [--rows 8192] [--dimensions 128] [--only nt_xent] [--memory] [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import contraport
from benchmarks.cases import CASES, Call, Case, make_views

RESULTS = Path("benchmarks/results/engine.json")

UNIT = 512
"""Rows and columns of the unit's tiles: here a product is quickest."""

Measured = dict[str, dict[str, float]]


def multiply_in_tiles(x: torch.Tensor, y: torch.Tensor) -> None:
    """Compute X Y^T in tiles, into one buffer: the unit of time."""
    buffer = torch.empty(UNIT, UNIT)
    for rows in x.split(UNIT):
        for columns in y.split(UNIT):
            torch.mm(rows, columns.T, out=buffer[: len(rows), : len(columns)])


def time_step(call: Call, layout: str, rows: int, dimensions: int) -> tuple[float, torch.Tensor]:
    """Return the seconds of forward + backward, and the gradient."""
    z0, z1 = make_views(layout, rows, dimensions)
    gc.collect()  # what the case before has left
    start = time.perf_counter()
    call(z0, z1).backward()
    return time.perf_counter() - start, torch.cat([z0.grad, z1.grad])


def measure(cases: Sequence[Case], rows: int, dimensions: int, rounds: int, seconds: float) -> Measured:
    calls = {case.name: case.make() for case in cases}
    x = torch.randn(rows, dimensions)
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    units, references, errors = [], {}, {}
    for _ in range(rounds + 1):  # the first warms up
        for _ in range(3):
            start = time.perf_counter()
            multiply_in_tiles(x, x)
            units.append(time.perf_counter() - start)
        for case in cases:
            if sum(times[case.name][1:]) < seconds:
                taken, gradient = time_step(calls[case.name], case.layout, rows, dimensions)
                times[case.name].append(taken)
                reference = references.setdefault(case.loss, gradient)
                errors[case.name] = float((gradient - reference).norm() / reference.norm())
    unit = statistics.median(units[3:])
    result = {name: statistics.median(values[1:] or values) for name, values in times.items()}
    return {
        name: {"products": value / unit, "seconds": value, "gradient_error": errors[name]}
        for name, value in result.items()
    }


def peak_memory(case: Case, rows: int, dimensions: int) -> float:
    """Return the MiB of a forward + backward beyond inputs and their gradients, measured in a new process."""
    code = (
        "from benchmarks.cases import CASES\n"
        "from benchmarks.engine import peak_process_memory, time_step\n"
        f"case = next(case for case in CASES if case.name == {case.name!r})\n"
        "call = case.make()\n"
        f"time_step(call, case.layout, 64, {dimensions})\n"
        "before = peak_process_memory()\n"
        f"time_step(call, case.layout, {rows}, {dimensions})\n"
        "print(peak_process_memory() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    views = 1 if case.layout == "joint" else 2
    return float(done.stdout.split()[-1]) - 2 * views * rows * dimensions * 4 / (1 << 20)


def peak_process_memory() -> float:
    """Return the peak memory of this process in MiB, from Linux's /proc, as getrusage includes that of the parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def print_table(rows: int, dimensions: int, measured: Measured) -> None:
    table = Table(title=f"{rows:,} rows, d = {dimensions}, {torch.get_num_threads()} threads: forward + backward")
    table.add_column("loss, by")
    for heading in ("products", "seconds", "gradient error", "MiB"):
        table.add_column(heading, justify="right")
    loss = None
    for name, case in measured.items():
        if loss not in (None, name.split(",")[0]):
            table.add_section()
        loss = name.split(",")[0]
        memory = f"{case['mebibytes']:.0f}" if "mebibytes" in case else ""
        table.add_row(
            name, f"{case['products']:.2f}", f"{case['seconds']:.4f}", f"{case['gradient_error']:.1e}", memory
        )
    Console().print(table)


def machine() -> dict[str, str | int]:
    """Describe the machine and the versions of the measurements."""
    return {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "contraport": contraport.__version__,
    }


def save(out: Path, rows: int, dimensions: int, measured: Measured) -> None:
    """Replace the results of the measured cases in the file."""
    before = json.loads(out.read_text())["results"] if out.exists() else []
    tables = {(r["dimensions"], r["rows"]): r["cases"] for r in before}
    tables[dimensions, rows] = tables.get((dimensions, rows), {}) | measured
    results = [{"rows": n, "dimensions": d, "cases": cases} for (d, n), cases in sorted(tables.items())]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "results": results}, indent=1))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[8192])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.5, help="a case's share, after its first call")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose name begins so")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory, in a process per case")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    chosen = [case for case in CASES if case.name.startswith(tuple(options.only))]
    for dimensions in options.dimensions:
        for rows in options.rows:
            for case in chosen:
                if obstacle := case.skip_reason(rows):
                    print(f"left out at {rows:,} rows: {case.name}: {obstacle}")
            cases = [case for case in chosen if case.skip_reason(rows) is None]
            measured = measure(cases, rows, dimensions, options.rounds, options.seconds)
            if options.memory:
                for case in cases:
                    measured[case.name]["mebibytes"] = peak_memory(case, rows, dimensions)
            print_table(rows, dimensions, measured)
            save(options.out, rows, dimensions, measured)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
