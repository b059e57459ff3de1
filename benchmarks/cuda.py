"""Time of InfoNCE, NT-Xent and three Sinkhorn iterations on a GPU, compared with other packages and a lower bound.

The bound is the time of the matrix products that are needed, at the rate of a large product measured on the same device
in the same run, forward and backward: 4 products of 2 N^2 d for InfoNCE in both directions, 4 K + 2 for K Sinkhorn
iterations, and 8 for NT-Xent, whose 2 N embeddings are rows and columns, so that a pair is found once for its two
places. Times are medians of forward + backward, by device events, with embeddings multiplied in bfloat16.

Without a device the same table is printed and written with every row marked as not yet measured.

    python -m benchmarks.cuda [--rows 4096 ...] [--dimensions 128 ...] [--out benchmarks/results/cuda.json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import contraport

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

TEMPERATURE = 0.1
ITERATIONS = 3
REPEATS = 20


class Case(NamedTuple):
    """Implementation of a loss, with the number of matrix products that it needs at least."""

    name: str
    make: Callable[[], Call]
    products: int
    package: str | None = None


def info_nce() -> Call:
    loss = contraport.info_nce(temperature=TEMPERATURE)
    return lambda z0, z1: ours(loss, z0, z1)


def sinkhorn() -> Call:
    loss = contraport.Objective(
        contraport.Cross(symmetric=False),
        contraport.Gibbs("cosine", TEMPERATURE),
        contraport.Balanced(ITERATIONS),
        contraport.Pairs(),
        contraport.KL(),
    )
    return lambda z0, z1: ours(loss, z0, z1)


def ours(loss: contraport.Objective, z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
    with contraport.engine.backend("cuda"), contraport.engine.precision("bfloat16"):
        return loss(z0, z1)


def dense_info_nce() -> Call:
    def call(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
        logits = (F.normalize(z0).bfloat16() @ F.normalize(z1).bfloat16().T).float() / TEMPERATURE
        labels = torch.arange(len(z0), device=z0.device)
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return torch.compile(call)


def dense_sinkhorn() -> Call:
    def call(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
        s = (F.normalize(z0).bfloat16() @ F.normalize(z1).bfloat16().T).float() / TEMPERATURE
        f, g = torch.zeros_like(s[:, 0]), torch.zeros_like(s[0])
        for _ in range(ITERATIONS):
            f = -(s + g).logsumexp(1)
            g = -(s + f[:, None]).logsumexp(0)
        return -(s.diagonal() + f + g).mean()

    return torch.compile(call)


def nt_xent() -> Call:
    loss = contraport.nt_xent(temperature=TEMPERATURE)
    return lambda z0, z1: ours(loss, z0, z1)


def dense_nt_xent() -> Call:
    def call(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
        z = F.normalize(torch.cat([z0, z1])).bfloat16()
        logits = (z @ z.T).float() / TEMPERATURE
        logits = logits.fill_diagonal_(-torch.inf)
        return F.cross_entropy(logits, torch.arange(len(z), device=z.device).roll(len(z0)))

    return torch.compile(call)


def memeff_info_nce() -> Call:
    from memeff import MemoryEfficientCLIPLoss

    loss = MemoryEfficientCLIPLoss(temperature=TEMPERATURE, normalized_inputs=True, stable=False)
    return lambda z0, z1: loss(F.normalize(z0), F.normalize(z1))


def flash_sinkhorn() -> Call:
    from flash_sinkhorn import SamplesLoss

    loss = SamplesLoss(
        "sinkhorn",
        half_cost=True,
        eps=TEMPERATURE,
        n_iters=ITERATIONS,
        use_epsilon_scaling=False,
        backend="alternating",
        debias=False,
    )
    return lambda z0, z1: loss(F.normalize(z0), F.normalize(z1))


CASES = [
    Case("info_nce", info_nce, 4),
    Case("info_nce, dense torch.compile", dense_info_nce, 4),
    Case("info_nce, memeff", memeff_info_nce, 4, "memeff"),
    Case("nt_xent", nt_xent, 8),
    Case("nt_xent, dense torch.compile", dense_nt_xent, 8),
    Case("sinkhorn K=3", sinkhorn, 4 * ITERATIONS + 2),
    Case("sinkhorn K=3, dense torch.compile", dense_sinkhorn, 4 * ITERATIONS + 2),
    Case("sinkhorn K=3, flash_sinkhorn", flash_sinkhorn, 4 * ITERATIONS + 2, "flash_sinkhorn"),
]


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call on the GPU, in milliseconds."""
    for _ in range(3):
        call()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def product_rate() -> float:
    """Return the operations per millisecond of a large matrix product in bfloat16."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / milliseconds(lambda: a @ b)


def measure(case: Case, rows: int, dimensions: int, rate: float) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(rows, dimensions, generator=generator).cuda()
    z1 = z0 + 0.5 * torch.randn(rows, dimensions, generator=generator).cuda()
    views = [z.requires_grad_() for z in (z0, z1)]
    loss = case.make()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    time = milliseconds(lambda: torch.autograd.grad(loss(*views), views))
    bound = case.products * 2 * rows**2 * dimensions / rate
    peak = (torch.cuda.max_memory_allocated() - before) / (1 << 20)
    return {"milliseconds": time, "bound": bound, "ratio": time / bound, "mebibytes": peak}


def row(case: Case, rows: int, dimensions: int, rate: float | None) -> dict[str, float | str]:
    """Return the measurements of a case as a table row, or the reason why it was not measured."""
    if rate is None:
        return {"note": "not yet measured"}
    if case.package is not None and importlib.util.find_spec(case.package) is None:
        return {"note": "not installed"}
    try:
        return {**measure(case, rows, dimensions, rate)}
    except torch.OutOfMemoryError:
        return {"note": "out of memory"}
    except Exception as error:
        if case.package is None:
            raise
        return {"note": f"fails: {str(error).splitlines()[0][:60]}"}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[4096, 8192, 16384, 32768, 65536, 131072])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[128, 256, 512, 768])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/cuda.json"))
    options = parser.parse_args(arguments)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    rate = None if device is None else product_rate()
    machine = {
        "device": device,
        "teraflops": None if rate is None else rate * 1e-9,
        "torch": torch.__version__,
        "contraport": contraport.__version__,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, float | str]] = []
    for dimensions in options.dimensions:
        table = Table(title=f"d = {dimensions}, bfloat16, {device or 'no CUDA device'}: forward + backward")
        table.add_column("problem")
        for heading in ("rows", "ms", "times the bound", "MiB"):
            table.add_column(heading, justify="right")
        for rows in options.rows:
            for case in CASES:
                result = row(case, rows, dimensions, rate)
                results.append({"case": case.name, "rows": rows, "dimensions": dimensions, **result})
                shown = [
                    f"{result[key]:.3g}" if key in result else "" for key in ("milliseconds", "ratio", "mebibytes")
                ]
                table.add_row(case.name, f"{rows:,}", *([str(result["note"]), "", ""] if "note" in result else shown))
                # After each, so that a run that is cut off leaves what it had found.
                options.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1))
        Console().print(table)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
