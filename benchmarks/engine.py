"""Time and memory of the objectives, in units of one matrix product, beside the peers that are installed.

The unit is the product X Y^T of the same problem, written in tiles into one reused buffer: what no exact method avoids.
Times are of forward + backward, the median of interleaved repetitions, so that a noisy machine is noisy for all alike.

    python -m benchmarks.engine [--rows 8192] [--dimensions 128] [--repeats 5] [--out benchmarks/results/engine.json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table

import contraport
from contraport.engine.passes import TILE

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def product(x: torch.Tensor, y: torch.Tensor) -> None:
    """The unit: X Y^T in tiles, into one buffer."""
    buffer = torch.empty(TILE, TILE)
    for rows in x.split(TILE):
        for columns in y.split(TILE):
            torch.mm(rows, columns.T, out=buffer[: len(rows), : len(columns)])


def ours(name: str, policy: str, **settings: object) -> Call:
    loss = contraport.objective(name, **settings)

    def call(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
        with contraport.engine.policy(policy):
            return loss(z0, z1)

    return call


def dense_nt_xent(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
    z = F.normalize(torch.cat([z0, z1]))
    logits = (z @ z.T / 0.1).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(z0)))


def dense_info_nce(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
    logits, labels = F.normalize(z0) @ F.normalize(z1).T / 0.1, torch.arange(len(z0))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def lightly_nt_xent() -> Call:
    from lightly.loss import NTXentLoss

    return NTXentLoss(0.1)


def metric_learning_nt_xent() -> Call:
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

    return SelfSupervisedLoss(NTXentLoss(0.1))


def open_clip_info_nce() -> Call:
    from open_clip.loss import ClipLoss

    loss = ClipLoss()
    return lambda z0, z1: loss(F.normalize(z0), F.normalize(z1), 1 / 0.1)


def ours_cross_sinkhorn(policy: str) -> Call:
    parts = contraport.Cross(symmetric=False), contraport.Gibbs("cosine", 0.1), contraport.Balanced(3)
    loss = contraport.Objective(*parts, contraport.Pairs(), contraport.KL())

    def call(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
        with contraport.engine.policy(policy):
            return loss(z0, z1)

    return call


def pot_cross_sinkhorn() -> Call:
    """POT's first half step is on the columns: the transposed problem has ours."""
    import ot

    def call(z0: torch.Tensor, z1: torch.Tensor) -> torch.Tensor:
        cost = 1 - F.normalize(z1) @ F.normalize(z0).T
        weights = torch.full((len(z0),), 1 / len(z0))
        plan = ot.bregman.sinkhorn_log(weights, weights, cost, 0.1, numItermax=3, stopThr=0, warn=False)
        return -(plan.diagonal() * len(z0)).log().mean()

    return call


# name, what computes it, whether the problem is joint (2n rows) or cross (n rows), package, largest number of rows
CASES: list[tuple[str, Callable[[], Call], str, str | None, int]] = [
    ("nt_xent, streamed", lambda: ours("nt-xent", "streamed", temperature=0.1), "joint", None, 1 << 20),
    ("nt_xent, stored", lambda: ours("nt-xent", "stored", temperature=0.1), "joint", None, 16384),
    ("nt_xent, autograd", lambda: dense_nt_xent, "joint", None, 8192),
    ("nt_xent, lightly", lightly_nt_xent, "joint", "lightly", 8192),
    ("nt_xent, pytorch-metric-learning", metric_learning_nt_xent, "joint", "pytorch_metric_learning", 1024),
    ("info_nce, streamed", lambda: ours("info-nce", "streamed", temperature=0.1), "cross", None, 1 << 20),
    ("info_nce, stored", lambda: ours("info-nce", "stored", temperature=0.1), "cross", None, 16384),
    ("info_nce, autograd", lambda: dense_info_nce, "cross", None, 8192),
    ("info_nce, open_clip", open_clip_info_nce, "cross", "open_clip", 8192),
    *(
        (
            f"gca_ince K={k}, {policy}",
            lambda k=k, policy=policy: ours("gca-ince", policy, temperature=0.1, iterations=k),
            "joint",
            None,
            1 << 20 if policy == "streamed" else 16384,
        )
        for k in (3, 10)
        for policy in ("streamed", "stored")
    ),
    ("gca_ince K=3, autograd", lambda: ours("gca-ince", "dense", temperature=0.1, iterations=3), "joint", None, 8192),
    (
        "gca_uot K=3, streamed",
        lambda: ours("gca-uot", "streamed", temperature=0.1, iterations=3),
        "joint",
        None,
        1 << 20,
    ),
    ("cross sinkhorn K=3, streamed", lambda: ours_cross_sinkhorn("streamed"), "cross", None, 1 << 20),
    ("cross sinkhorn K=3, stored", lambda: ours_cross_sinkhorn("stored"), "cross", None, 16384),
    ("cross sinkhorn K=3, POT", pot_cross_sinkhorn, "cross", "ot", 8192),
    ("gca_uot K=3, stored", lambda: ours("gca-uot", "stored", temperature=0.1, iterations=3), "joint", None, 16384),
]


def problem(layout: str, rows: int, dimensions: int) -> tuple[torch.Tensor, torch.Tensor]:
    n = rows // 2 if layout == "joint" else rows
    generator = torch.Generator().manual_seed(0)
    z0 = torch.randn(n, dimensions, generator=generator)
    z1 = z0 + 0.5 * torch.randn(n, dimensions, generator=generator)
    return z0.requires_grad_(), z1.requires_grad_()


def step(call: Call, layout: str, rows: int, dimensions: int) -> tuple[float, list[torch.Tensor]]:
    z0, z1 = problem(layout, rows, dimensions)
    start = time.perf_counter()
    call(z0, z1).backward()
    return time.perf_counter() - start, [z0.grad, z1.grad]


def measure(rows: int, dimensions: int, repeats: int, only: str) -> dict[str, dict[str, float]]:
    cases = [
        (name, make(), layout)
        for name, make, layout, package, most in CASES
        if only in name and rows <= most and (package is None or importlib.util.find_spec(package))
    ]
    x = torch.randn(rows, dimensions)
    times: dict[str, list[float]] = {name: [] for name, *_ in cases}
    units: list[float] = []
    gradients: dict[str, list[torch.Tensor]] = {}
    for _ in range(repeats + 1):
        start = time.perf_counter()
        product(x, x)
        units.append(time.perf_counter() - start)
        for name, call, layout in cases:
            seconds, gradients[name] = step(call, layout, rows, dimensions)
            times[name].append(seconds)
    unit = statistics.median(units[1:])
    return {
        name: {
            "products": statistics.median(values[1:]) / unit,
            "seconds": statistics.median(values[1:]),
            "gradient_error": error(gradients[name], reference(name, gradients)),
        }
        for name, values in times.items()
    }


def reference(name: str, gradients: dict[str, list[torch.Tensor]]) -> list[torch.Tensor]:
    """The gradient of the first case that computes the same loss."""
    loss = name.split(",")[0]
    return next(value for other, value in gradients.items() if other.split(",")[0] == loss)


def error(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    return max(float((a - b).norm() / b.norm()) for a, b in zip(left, right, strict=True))


def peak_memory(name: str, rows: int, dimensions: int) -> float:
    """MiB above the inputs that one forward + backward needs, in a process of its own."""
    code = (
        "import resource, torch\n"
        "from benchmarks.engine import CASES, step\n"
        f"make, layout = next((make, layout) for n, make, layout, *_ in CASES if n == {name!r})\n"
        f"step(make(), layout, 1024, {dimensions})\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"step(make(), layout, {rows}, {dimensions})\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    inputs = rows * dimensions * 4 / (1 << 20)
    return float(done.stdout) - inputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[8192])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[128])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--memory", action="store_true", help="also measure peak memory, in a process per case")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/engine.json"))
    options = parser.parse_args()
    results = []
    for dimensions in options.dimensions:
        for rows in options.rows:
            measured = measure(rows, dimensions, options.repeats, options.only)
            if options.memory:
                for name in measured:
                    measured[name]["mebibytes"] = peak_memory(name, rows, dimensions)
            show(rows, dimensions, measured)
            results.append({"rows": rows, "dimensions": dimensions, "cases": measured})
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "contraport": contraport.__version__,
        "peak_mebibytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1))
    print(f"written to {options.out}")


def show(rows: int, dimensions: int, measured: dict[str, dict[str, float]]) -> None:
    table = Table(title=f"{rows:,} rows, d = {dimensions}, {torch.get_num_threads()} threads: forward + backward")
    table.add_column("objective")
    for heading in ("products", "seconds", "gradient error", "MiB"):
        table.add_column(heading, justify="right")
    for name, case in measured.items():
        memory = f"{case['mebibytes']:.0f}" if "mebibytes" in case else ""
        table.add_row(
            name, f"{case['products']:.2f}", f"{case['seconds']:.3f}", f"{case['gradient_error']:.1e}", memory
        )
    Console().print(table)


if __name__ == "__main__":
    main()
