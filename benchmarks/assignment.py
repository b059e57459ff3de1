"""One-to-one assignments of whole sets: a known answer, and the excess over the least cost.

Fashion-MNIST against its blurred self has a known answer: each image belongs to its own version, blurred by a Gaussian
of two pixels. Pixels are reduced to the 64 leading principal components of the blurred images. Measured are the shares
of images and of versions whose partner is their own, by nearest neighbors, by the heaviest entries of a Sinkhorn plan,
and by `approximate_assignment`; with processor seconds and peak memory beyond the points, each in a new process, and
for Sinkhorn those of the plan alone.

The cost of an assignment is compared with the least cost, by SciPy on the whole matrix, for three pairs of sets:
top halves of images against bottom halves, images against other images, and Gaussian points in 64 dimensions. Above
5,000 points SciPy begins from the potentials of the assignment, which changes its time, but not the least cost.

`--auctions` measures the auction alone, beside least costs that are written already.

    python -m benchmarks.assignment [--plans 20000] [--items 20000 60000] [--exact 5000 10000 20000]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.ndimage import gaussian_filter
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from benchmarks.engine import machine, peak_process_memory
from contraport import Balanced, Gibbs, approximate_assignment, transport
from contraport.data import load
from contraport.engine import Geometry
from contraport.objectives import Plan

BLUR, COMPONENTS, TEMPERATURE, ITERATIONS = 2.0, 64, 1.0, 5
MAX_WITHOUT_POTENTIALS = 5_000
"""Largest number of points for which SciPy begins without potentials; at 10,000 it takes minutes."""
POTENTIAL_UPDATES = 30

Points = tuple[Tensor, Tensor]


def load_images(n: int) -> Tensor:
    """Return the first n training images of Fashion-MNIST, (n, 28, 28), with pixels from 0 to 1."""
    return load("fashion-mnist").__getitems__(list(range(n))).views[0][:, 0].float() / 255


def load_blurred(n: int) -> Points:
    """Return components of the images and of the blurred images, (n, 64) each."""
    images = load_images(n)
    blurred = torch.from_numpy(gaussian_filter(images.numpy(), (0, BLUR, BLUR)))
    x, y = images.flatten(1), blurred.flatten(1)
    mean = y.mean(0)
    _, directions = torch.linalg.eigh((y - mean).T @ (y - mean))  # in ascending order
    return (x - mean) @ directions[:, -COMPONENTS:], (y - mean) @ directions[:, -COMPONENTS:]


def load_halves(n: int) -> Points:
    """Return the top and the bottom halves of n images of 14 x 14 pixels, (n, 98) each."""
    top, bottom = torch.nn.functional.avg_pool2d(load_images(n), 2).chunk(2, dim=1)
    return top.flatten(1), bottom.flatten(1)


def load_others(n: int) -> Points:
    """Return n images of 14 x 14 pixels and n other images, (n, 196) each."""
    images = torch.nn.functional.avg_pool2d(load_images(2 * n), 2).flatten(1)
    return images[:n], images[n:]


def draw_gaussian(n: int) -> Points:
    """Return two independent sets of Gaussian points, (n, 64) each."""
    x, y = torch.randn(2, n, 64, generator=torch.Generator().manual_seed(0))
    return x, y


SETS: dict[str, Callable[[int], Points]] = {
    "halves of images": load_halves,
    "images, other images": load_others,
    "Gaussian points": draw_gaussian,
}


def find_heaviest(plan: Plan) -> tuple[Tensor, Tensor]:
    """Return the columns of the heaviest entries of the rows, and the rows of those of the columns."""
    return plan.top(1).coalesce().indices()[1], plan.T.top(1).coalesce().indices()[1]


def solve(method: str, x: Tensor, y: Tensor) -> Plan | tuple[Tensor, Tensor]:
    """Return a plan, or the partner of each point of x and that of each point of y."""
    if method == "assignment":
        partners = approximate_assignment(x, y, auction_size=0).partners
        return partners, partners.argsort()
    kernel = Gibbs("sqeuclidean", TEMPERATURE)
    if method == "Sinkhorn":
        return transport(x, y, kernel, Balanced(ITERATIONS)).plan
    return find_heaviest(Plan(Geometry(kernel(x, y)), None, None))  # the heaviest entry is the nearest neighbor


@torch.no_grad()
def measure_method(method: str, file: Path) -> dict[str, Any]:
    """Return the shares that a method recovers, with its time and memory; run in a process of its own."""
    torch.set_num_threads(1)
    x, y = torch.from_numpy(np.load(file))
    solve(method, x[:100], y[:100])  # imports what the method needs
    Path("/proc/self/clear_refs").write_text("5")  # Linux then counts the peak from here
    before, begin = peak_process_memory(), time.process_time()
    result = solve(method, x, y)
    seconds, memory = time.process_time() - begin, peak_process_memory() - before
    partners = find_heaviest(result) if isinstance(result, Plan) else result
    shares = [float((results_of == torch.arange(len(x))).double().mean()) for results_of in partners]
    return {
        "items": len(x),
        "method": method,
        "recovered, images": shares[0],
        "recovered, versions": shares[1],
        "seconds": seconds,
        "MiB": memory,
        "MiB of the matrix": len(x) ** 2 * 4 / 2**20,
    }


def in_new_process(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function).result()


def find_least_cost(x: Tensor, y: Tensor, partners: Tensor) -> float:
    """Return the least mean cost of a one-to-one assignment, by SciPy on the whole matrix."""
    costs = torch.cdist(x.double(), y[partners].double()).square_().numpy()
    n, assigned = len(costs), costs.diagonal().copy()
    potentials = np.zeros(n)
    for _ in range(POTENTIAL_UPDATES if n > MAX_WITHOUT_POTENTIALS else 0):
        shorter = np.full(n, np.inf)
        for part in np.split(np.arange(n), range(1000, n, 1000)):  # a copy of a part of the matrix at a time
            reduced = costs[part] + (potentials - assigned)[part, None]
            np.minimum(shorter, reduced.min(0), out=shorter)
        potentials = shorter
    shifts = potentials - assigned
    costs += shifts[:, None]
    costs -= potentials
    rows, columns = linear_sum_assignment(costs)
    return float((costs[rows, columns] - shifts[rows] + potentials[columns]).mean())


def measure_excess(name: str, n: int) -> dict[str, Any]:
    """Return the excess of the assignment over the least cost, in percent, and the time of both."""
    torch.set_num_threads(1)
    x, y = SETS[name](n)
    approximate_assignment(x[:100], y[:100])
    begin = time.process_time()
    result = approximate_assignment(x, y, auction_size=0)
    seconds, begin = time.process_time() - begin, time.process_time()
    least = find_least_cost(x, y, result.partners)
    excess = [100 * (cost / least - 1) for cost in result.mean_cost_by_pass]
    return {
        "sets": name,
        "items": n,
        "least cost": least,
        "excess %, no pass": excess[0],
        "10 passes": excess[min(10, len(excess) - 1)],
        "all passes": excess[-1],
        "passes": len(excess) - 1,
        "seconds": seconds,
        "SciPy's seconds": time.process_time() - begin,
        "SciPy's start": "none" if n <= MAX_WITHOUT_POTENTIALS else "potentials",
    }


def measure_auction(name: str, n: int, least: float) -> dict[str, Any]:
    """Return the excess of the auction over the least cost, the bound on it, in percent, and its time."""
    torch.set_num_threads(1)
    x, y = SETS[name](n)
    approximate_assignment(x[:100], y[:100], block_size=50)
    begin = time.process_time()
    result = approximate_assignment(x, y, auction_size=n)
    assert result.gap is not None
    return {
        "sets": name,
        "items": n,
        "excess %": 100 * (result.mean_cost / least - 1),
        "bound %": 100 * result.gap / result.mean_cost,
        "seconds": time.process_time() - begin,
    }


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(*rows[0], title=title)
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=160).print(table)


def main() -> None:
    """Print and write both tables; what is measured replaces the rows of before."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--plans", type=int, nargs="*", default=[20_000], help="Images of the plans and neighbors.")
    parser.add_argument("--items", type=int, nargs="*", default=[20_000, 60_000], help="Images of the assignments.")
    parser.add_argument("--exact", type=int, nargs="*", default=[5_000, 10_000, 20_000], help="Points beside SciPy.")
    parser.add_argument("--auctions", type=int, nargs="*", default=[5_000, 10_000, 20_000], help="Points of auctions.")
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/assignment.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    written = json.loads(options.out.read_text()) if options.out.exists() else {}
    written = {name: written.get(name, []) for name in ("known", "excess", "auctions")}
    methods = [(n, method) for n in options.plans for method in ("nearest neighbors", "Sinkhorn")]
    methods += [(n, "assignment") for n in options.items]
    with tempfile.TemporaryDirectory() as folder:
        for n, method in methods:
            file = Path(folder) / f"{n}.npy"
            if not file.exists():
                np.save(file, torch.stack(load_blurred(n)).numpy())
            add_row(written["known"], in_new_process(partial(measure_method, method, file)), ("items", "method"))
    for n in options.exact:
        for name in options.sets:
            add_row(written["excess"], in_new_process(partial(measure_excess, name, n)), ("sets", "items"))
    for n in options.auctions:
        for name in options.sets:
            (least,) = (row["least cost"] for row in written["excess"] if (row["sets"], row["items"]) == (name, n))
            row = in_new_process(partial(measure_auction, name, n, least))
            add_row(written["auctions"], row, ("sets", "items"))
    settings = {"blur": BLUR, "components": COMPONENTS, "temperature": TEMPERATURE, "iterations": ITERATIONS}
    options.out.write_text(json.dumps({"machine": machine(), "settings": settings, **written}, indent=1) + "\n")
    for title, rows in (
        ("Fashion-MNIST against its blurred self", "known"),
        ("Cost beside the least cost", "excess"),
        ("Auctions beside the least cost", "auctions"),
    ):
        if written[rows]:
            print_table(title, written[rows])


def add_row(rows: list[dict[str, Any]], row: dict[str, Any], keys: tuple[str, str]) -> None:
    """Add a row in place of that with the same keys, and print it."""
    print(row, flush=True)
    rows[:] = [one for one in rows if any(one[key] != row[key] for key in keys)] + [row]


if __name__ == "__main__":
    main()
