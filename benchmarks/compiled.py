"""CPU time of a loss and its gradient under torch.compile, as a share of that in eager mode.

Both take turns in one process, with one thread; the least time of the turns counts.

    python -m benchmarks.compiled [--turns 40] [--out benchmarks/results/compiled.json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import contraport
from benchmarks.engine import machine

CASES = (
    ("nt_xent", 32),
    ("nt_xent", 128),
    ("nt_xent", 256),
    ("gca_ince", 256),
    ("info_nce", 256),
    ("info_nce", 512),
    ("gca_uot", 1024),
)
"""Objectives and numbers of items, by two views each."""

DIMENSIONS = 128


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/compiled.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for name, items in CASES:
        eager, compiled = measure(name, items, options.turns)
        rows.append({"objective": name, "items": items, "eager_ms": 1e3 * eager, "compiled_ms": 1e3 * compiled})
    print_table(rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine(), "turns": options.turns, "dimensions": DIMENSIONS, "rows": rows}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {options.out}")


def measure(name: str, items: int, turns: int) -> tuple[float, float]:
    """Return the CPU seconds of a loss with its gradient, in eager mode and compiled as one graph."""
    torch.compiler.reset()
    torch.manual_seed(0)
    z = [torch.randn(items, DIMENSIONS, requires_grad=True) for _ in range(2)]
    loss: contraport.objectives.Loss = getattr(contraport, name)()
    calls = loss, torch.compile(loss, fullgraph=True)
    least = [float("inf"), float("inf")]
    for turn in range(turns + 2):
        for place, call in enumerate(calls):
            seconds = cpu_seconds(call, z)
            if turn > 1:  # the first compile
                least[place] = min(least[place], seconds)
    return least[0], least[1]


def cpu_seconds(call: Callable[..., Tensor], z: list[Tensor]) -> float:
    start = time.process_time()
    torch.autograd.grad(call(*z), z)
    return time.process_time() - start


def print_table(rows: list[dict[str, str | float]]) -> None:
    table = Table(title="A loss and its gradient, in milliseconds of CPU time")
    for heading in ("objective", "items", "eager", "compiled", "ratio"):
        table.add_column(heading, justify="left" if heading == "objective" else "right")
    for row in rows:
        eager, compiled = float(row["eager_ms"]), float(row["compiled_ms"])
        items = f"2 x {row['items']:,}"
        table.add_row(str(row["objective"]), items, f"{eager:.2f}", f"{compiled:.2f}", f"{compiled / eager:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
