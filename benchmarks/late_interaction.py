"""Time and memory of the loss of sets of vectors, beside dense PyTorch and sentence-transformers, in one run.

Each case is a process of its own with one thread: cross-entropy of 128 queries of 32 vectors against 128 documents of
256 vectors, forward and backward. Memory is the peak of the process beyond its embeddings and their gradients, which
every loss has. Values and gradients are compared with dense PyTorch in double precision.

    python -m benchmarks.late_interaction [--pairs 128] [--out benchmarks/results/late_interaction.json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.engine import machine
from contraport import LateInteraction

QUERY_VECTORS, DOCUMENT_VECTORS, DIMENSIONS, TEMPERATURE = 32, 256, 128, 0.05


def dense(x: Tensor, y: Tensor, tau: float, iterations: int) -> Tensor:
    """Return the similarities from the tensor of all pairs of vectors; tau 0 is the maximum."""
    cosines = torch.einsum("ntd,msd->nmts", F.normalize(x, dim=2), F.normalize(y, dim=2))
    if tau == 0:
        return cosines.max(3).values.mean(2)
    s = (cosines - 1) / tau
    rows, columns = torch.tensor([s.shape[2], s.shape[3]], dtype=s.dtype).log()
    g = torch.zeros_like(s[:, :, :1])
    f = columns - s.logsumexp(3, keepdim=True)
    for _ in range(iterations):
        g = rows - (s + f).logsumexp(2, keepdim=True)
        f = columns - (s + g).logsumexp(3, keepdim=True)
    return 1 - tau * (f.mean((2, 3)) + g.mean((2, 3)))


def peer(x: Tensor, y: Tensor) -> Tensor:
    from sentence_transformers.util.similarity import maxsim

    scores: Tensor = maxsim(F.normalize(x, dim=2), F.normalize(y, dim=2), length_normalize=True)
    return scores


def ours(matching: str, iterations: int = 5) -> Callable[[Tensor, Tensor], Tensor]:
    return LateInteraction(matching, token_temperature=TEMPERATURE, iterations=iterations).similarities


CASES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "max": ours("max"),
    "max, dense": lambda x, y: dense(x, y, 0, 0),
    "max, sentence-transformers": peer,
    "soft": ours("soft"),
    "soft, dense": lambda x, y: dense(x, y, TEMPERATURE, 0),
    "transport, 2 iterations": ours("transport", 2),
    "transport, 2 iterations, dense": lambda x, y: dense(x, y, TEMPERATURE, 2),
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/late_interaction.json"))
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args(arguments)
    if options.case:
        print(json.dumps(measure(options.case, options.pairs)))
        return
    # Freed tensors beyond the size of a tile go back to the system, so that the peak is that of the tensors alive.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "4194304", "MALLOC_TRIM_THRESHOLD_": "65536"}
    rows = []
    for case in CASES:
        command = [sys.executable, "-m", "benchmarks.late_interaction", "--pairs", str(options.pairs), "--case", case]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{case}: {done.stderr.strip().splitlines()[-1]}")
            continue
        rows.append({"case": case, **json.loads(done.stdout.splitlines()[-1])})
        print(rows[-1], flush=True)
    print_table(rows)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine(), "pairs": options.pairs, "rows": rows}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {options.out}")


def measure(case: str, pairs: int) -> dict[str, float]:
    torch.set_num_threads(1)
    similarities = CASES[case]
    _, error = value_and_error(case)
    x, y = embeddings(pairs, torch.float32)
    gradients = 4 * (x.numel() + y.numel())
    start = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", "utf-8")
    step(similarities, x, y)
    peak = resident("VmHWM") - start - gradients
    begun = time.process_time()
    step(similarities, x, y)
    seconds = time.process_time() - begun
    return {"seconds": seconds, "mebibytes": peak / (1 << 20), "gradient_error": error}


def value_and_error(case: str) -> tuple[float, float]:
    """Return the loss of a few pairs, and the largest error of its gradient, relative to its largest entry."""
    x, y = embeddings(6, torch.float32)
    value, *gradients = step(CASES[case], x, y)
    name = case.removesuffix(", sentence-transformers").removesuffix(", dense")
    reference = CASES[f"{name}, dense"]
    _, *expected = step(reference, *(z.detach().double().requires_grad_() for z in (x, y)))
    errors = ((a - b).abs().max() / b.abs().max() for a, b in zip(gradients, expected, strict=True))
    return float(value), float(max(errors))


def embeddings(pairs: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(pairs, QUERY_VECTORS, DIMENSIONS, generator=generator)
    y = torch.randn(pairs, DOCUMENT_VECTORS, DIMENSIONS, generator=generator)
    return x.to(dtype).requires_grad_(), y.to(dtype).requires_grad_()


def step(similarities: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    loss = F.cross_entropy(similarities(x, y) / TEMPERATURE, torch.arange(len(x)))
    return loss, *torch.autograd.grad(loss, [x, y])


def resident(name: str) -> int:
    """Return the resident memory of this process, VmRSS, or its peak, VmHWM, in bytes."""
    status = Path("/proc/self/status").read_text("utf-8")
    return 1024 * int(next(line for line in status.splitlines() if line.startswith(name)).split()[1])


def print_table(rows: list[dict[str, str | float]]) -> None:
    table = Table(title="Loss of sets of vectors, forward and backward, on one thread")
    for heading in ("case", "CPU seconds", "MiB", "gradient error"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for row in rows:
        cells = f"{row['seconds']:.2f}", f"{row['mebibytes']:.0f}", f"{row['gradient_error']:.0e}"
        table.add_row(str(row["case"]), *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
