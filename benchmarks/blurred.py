"""Plan of a whole data set with a known answer: Fashion-MNIST against its blurred self, 60,000 by 60,000.

Each image is to be matched with its own blurred version (a Gaussian of two pixels), so that the true plan is the
identity. Pixels are reduced to the leading principal components of the blurred images, with which blurred images differ
among themselves. Printed and written: the share of images whose heaviest partner is their own, in both directions, of
the plan and of nearest neighbors, with time and peak memory beside the memory of a matrix of all pairs.

    python -m benchmarks.blurred [--items 60000] [--threads 2] [--iterations 5]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from benchmarks.engine import machine
from contraport import Balanced, Gibbs, transport
from contraport.data import load
from contraport.objectives import Plan

BLUR, COMPONENTS, TEMPERATURE = 2.0, 64, 1.0


def load_pairs(items: int) -> tuple[Tensor, Tensor]:
    """Return components of the images and of the blurred images, (n, 64) each; pixels are from 0 to 1."""
    images = load("fashion-mnist").__getitems__(list(range(items))).views[0][:, 0].float() / 255
    blurred = torch.from_numpy(gaussian_filter(images.numpy(), (0, BLUR, BLUR)))
    x, y = images.flatten(1), blurred.flatten(1)
    mean = y.mean(0)
    _, directions = torch.linalg.eigh((y - mean).T @ (y - mean))  # in ascending order
    return (x - mean) @ directions[:, -COMPONENTS:], (y - mean) @ directions[:, -COMPONENTS:]


def share_recovered(plan: Plan) -> float:
    """Return the share of rows whose heaviest entry is that of their own column."""
    partners = plan.top(1).coalesce().indices()
    return float((partners[0] == partners[1]).float().mean())


def main() -> None:
    """Print and write the shares, time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--items", type=int, default=60_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/blurred.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    x, y = load_pairs(options.items)
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    kernel = Gibbs("sqeuclidean", TEMPERATURE)
    with torch.no_grad():
        result = transport(x, y, kernel, Balanced(options.iterations))
        solved = time.perf_counter() - begin
        processor = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before.ru_utime
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss
        # The heaviest entry of the kernel itself is the nearest neighbor.
        nearest = Plan(result.plan.geometry, None, None)
        found = {
            "recovered, rows": share_recovered(result.plan),
            "recovered, columns": share_recovered(result.plan.T),
            "nearest neighbors, rows": share_recovered(nearest),
            "nearest neighbors, columns": share_recovered(nearest.T),
            "seconds of the plan": solved,
            "processor seconds of the plan": processor,
            "MiB added by the plan": peak / 1024,
            "MiB of a matrix of pairs": options.items**2 * 4 / 2**20,
            "marginal error": result.marginal_error,
        }
    for name, value in found.items():
        print(f"{name}: {value:.4g}")
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else {}
    results[str(options.items)] = found | {"threads": options.threads, "iterations": options.iterations}
    settings = {"blur": BLUR, "components": COMPONENTS, "temperature": TEMPERATURE}
    options.out.write_text(json.dumps({"machine": machine(), "settings": settings, "results": results}, indent=1))


if __name__ == "__main__":
    main()
