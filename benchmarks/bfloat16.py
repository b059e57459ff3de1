"""Products in bfloat16 on a CPU: time, error of the gradient, and training curves, beside single precision.

Times are CPU times of forward + backward in units of one matrix product X Y^T in single precision; the precisions and
the unit take turns in one process with one thread, and the minimum over turns is reported. Errors are relative to
double precision. Digits and 5,000 images of Fashion-MNIST are trained by NT-Xent in either precision from the same
seeds; the printed difference of the losses and of kNN has a 95% interval over seeds. `--turns 0` leaves out the times.

    python -m benchmarks.bfloat16 [--turns 7] [--seeds 5] [--epochs 15] [--out benchmarks/results/bfloat16.json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

import contraport
from benchmarks.engine import machine, multiply_in_tiles
from contraport.data import load
from contraport.embedding import embed_items_as_vectors
from contraport.engine import precision
from contraport.metrics.probes import knn

PRECISIONS = ("float32", "bfloat16")
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nt-xent", {}),
    ("nt-xent", {"temperature": 0.1}),
    ("gca-ince", {"iterations": 3}),
    ("info-nce", {}),
)
ROWS, DIMENSIONS = 8192, 128
MOST_ITEMS = 5000
"""Largest number of items that are trained on, and of items that are tested."""


def time_call(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def gradient(loss: contraport.objectives.Loss, z: Tensor, name: str) -> Tensor:
    z = z.clone().requires_grad_()
    with precision(name):
        loss(*z.unbind()).backward()
    assert z.grad is not None
    return z.grad


def measure(name: str, settings: dict[str, Any], turns: int) -> dict[str, Any]:
    """Return the time in products and the error of the gradient, by precision."""
    loss, generator = contraport.objective(name, **settings), torch.Generator().manual_seed(0)
    items = ROWS // 2 if name != "info-nce" else ROWS  # of the joint layout, both views are rows
    z = torch.randn(items, DIMENSIONS, generator=generator)
    z = torch.stack([z, z + torch.randn(items, DIMENSIONS, generator=generator)])
    x = torch.randn(ROWS, DIMENSIONS, generator=generator)
    exact = gradient(loss, z.double(), "float32")
    errors = {p: float((gradient(loss, z, p) - exact).norm() / exact.norm()) for p in PRECISIONS}
    times: dict[str, list[float]] = {p: [] for p in ("unit", *PRECISIONS)}
    for _ in range(turns):
        times["unit"].append(time_call(lambda: multiply_in_tiles(x, x)))
        for p in PRECISIONS:
            times[p].append(time_call(lambda p=p: gradient(loss, z, p)))  # type: ignore[misc]
    products = {p: min(times[p]) / min(times["unit"]) for p in PRECISIONS}
    return {"objective": name, **settings, "products": products, "gradient_error": errors}


def train_encoder(data: str, seed: int, name: str, epochs: int) -> tuple[float, float]:
    """Return the mean loss of the last epoch, and the accuracy of kNN, of a training."""
    splits = [load(data, split) for split in ("train", "test")]
    splits = [split.subset(torch.arange(min(MOST_ITEMS, len(split)))) for split in splits]
    with tempfile.TemporaryDirectory() as folder:
        with precision(name):
            run = contraport.train(
                data=splits[0], objective="nt-xent", encoder="mlp", epochs=epochs, batch_size=512, seed=seed,
                device="cpu", threads=1, out=f"{folder}/run", progress=False, log_every=1,
            )  # fmt: skip
        losses = [row["loss"] for row in run.metrics_rows() if row.get("epoch") == epochs and "loss" in row]
        train, test = (embed_items_as_vectors(run.model(), split) for split in splits)
        assert splits[0].labels is not None
        assert splits[1].labels is not None
        return float(np.mean(losses)), float(knn(train, splits[0].labels, test, splits[1].labels))


def summarize_pairs(curves: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """Return mean and deviation of loss and kNN by precision, and their paired difference with its 95% interval."""
    summary = {}
    for place, what in enumerate(("loss", "knn")):
        values = {p: np.array([row[place] for row in curves[p]]) for p in PRECISIONS}
        difference = values["bfloat16"] - values["float32"]
        half = stats.t.ppf(0.975, len(difference) - 1) * stats.sem(difference)
        summary[what] = {
            **{p: [float(v.mean()), float(v.std(ddof=1))] for p, v in values.items()},
            "difference": [float(difference.mean()), float(half)],
        }
        print(what, summary[what])
    return summary


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--data", nargs="*", default=["digits", "fashion-mnist"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/bfloat16.json"))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    written = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.turns:
        written["speed"] = [measure(name, settings, options.turns) for name, settings in CASES]
        for row in written["speed"]:
            print(row)
    for data in options.data:
        curves: dict[str, list[tuple[float, float]]] = {p: [] for p in PRECISIONS}
        for seed in range(options.seeds):
            for p in PRECISIONS:
                curves[p].append(train_encoder(data, seed, p, options.epochs))
                print(data, seed, p, curves[p][-1], flush=True)
        written[data] = summarize_pairs(curves) | {"seeds": options.seeds, "epochs": options.epochs}
    options.out.write_text(json.dumps({"machine": machine()} | written, indent=1) + "\n")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
