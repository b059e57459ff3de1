"""Accuracy of the first coordinates of embeddings: trained with and without `--matryoshka`, and by PCA.

Digits compared by the projection, digits compared by the features themselves, and the six views of UCI's multiple
features. `plain` is the training without nesting, cut to its first coordinates; `PCA` rotates its features to their
principal axes (of the training items) before they are cut. Printed and written: accuracy of kNN at each number of
coordinates per view, mean and standard deviation over seeds, and the difference of nested from the others with a 95%
interval over seeds.

    python -m benchmarks.matryoshka [--seeds 3]
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats
from sklearn.decomposition import PCA
from torch import Tensor

import contraport
from benchmarks.engine import machine
from contraport.data import Dataset, load
from contraport.embedding import embed_items_as_vectors
from contraport.encoders import Model
from contraport.metrics.probes import knn

DIGITS = {"data": "digits", "encoder": "mlp", "epochs": 15, "batch_size": 128}
CASES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "digits, projection": ({**DIGITS, "representation": "projection"}, (128, 32, 8, 4, 2)),
    "digits, features": ({**DIGITS, "projection": 0}, (256, 32, 8, 4, 2)),
    "UCI, six views": (
        {"data": "uci-multiple-features", "recipe": "cmc", "epochs": 10, "representation": "projection"},
        (128, 32, 8, 4, 2),
    ),
}


def embed(model: Model, splits: tuple[Dataset, Dataset]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the features of each view of the training and of the test items."""
    parts = [
        embed_items_as_vectors(model, split).split(model.untruncated_representation_sizes, dim=1) for split in splits
    ]
    return list(parts[0]), list(parts[1])


def rotate(train: list[Tensor], test: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Rotate the features of each view to the principal axes of the training items."""
    rotated: tuple[list[Tensor], list[Tensor]] = ([], [])
    for own, held_out in zip(train, test, strict=True):
        pca = PCA(svd_solver="full").fit(own.numpy())
        for side, values in zip(rotated, (own, held_out), strict=True):
            side.append(torch.from_numpy(pca.transform(values.numpy()).astype(np.float32)))
    return rotated


def accuracy(train: list[Tensor], test: list[Tensor], dims: int, labels: tuple[Tensor, Tensor]) -> float:
    """Return the accuracy of kNN by the first coordinates of each view, side by side."""
    x, y = (torch.cat([view[:, :dims] for view in side], dim=1) for side in (train, test))
    return float(knn(x, labels[0], y, labels[1]))


def measure(name: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """Train with and without nesting, and return a row for each way and number of coordinates."""
    options, dims = CASES[name]
    splits = load(options["data"], "train"), load(options["data"], "test")
    labels = splits[0].labels, splits[1].labels
    assert labels[0] is not None
    assert labels[1] is not None
    rows = []
    for way in ("plain", "nested"):
        nested = {"matryoshka": list(dims)} if way == "nested" else {}
        started = time.perf_counter()
        run = contraport.train(
            **options, **nested, seed=seed, out=folder / f"{way}-{seed}", overwrite=True, progress=False, threads=1,
            device="cpu",
        )  # fmt: skip
        seconds = time.perf_counter() - started
        features = embed(run.model(), splits)
        ways = {way: features} if way == "nested" else {way: features, "PCA": rotate(*features)}
        for kind, parts in ways.items():
            for size in dims:
                value = accuracy(*parts, size, (labels[0], labels[1]))
                rows.append({"case": name, "seed": seed, "way": kind, "dims": size, "seconds": seconds, "knn": value})
    return rows


def compare(rows: list[dict[str, Any]], case: str, dims: int, other: str) -> tuple[float, float]:
    """Return the mean difference of nested from another way over seeds, and half of its 95% interval."""
    values = {(row["way"], row["seed"]): row["knn"] for row in rows if (row["case"], row["dims"]) == (case, dims)}
    seeds = sorted({seed for _, seed in values})
    differences = np.array([values["nested", seed] - values[other, seed] for seed in seeds])
    half = stats.t.ppf(0.975, len(seeds) - 1) * differences.std(ddof=1) / len(seeds) ** 0.5
    return float(differences.mean()), float(half)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/matryoshka.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            for seed in range(options.seeds):
                rows += measure(case, seed, Path(folder))
    table = Table("case", "dims", "plain", "PCA", "nested", "nested - plain", "nested - PCA")
    differences = []
    for case, (_, dims) in CASES.items():
        for size in dims:
            cells = []
            for way in ("plain", "PCA", "nested"):
                kept = [row for row in rows if (row["case"], row["dims"], row["way"]) == (case, size, way)]
                values = [100 * row["knn"] for row in kept]
                cells.append(f"{np.mean(values):.1f} ± {np.std(values, ddof=1):.1f}")
            for other in ("plain", "PCA"):
                mean, half = compare(rows, case, size, other)
                differences.append({"case": case, "dims": size, "than": other, "mean": mean, "half": half})
                cells.append(f"{100 * mean:+.1f} ± {100 * half:.1f}")
            table.add_row(case, str(size), *cells)
    Console(width=120).print(table)
    seconds = {way: sum(row["seconds"] for row in rows if row["way"] == way) for way in ("plain", "nested")}
    Console().print(f"training time, nested over plain: {seconds['nested'] / seconds['plain']:.2f}")
    result = {
        "command": f"python -m benchmarks.matryoshka --seeds {options.seeds}",
        "machine": machine(),
        "seconds_ratio": seconds["nested"] / seconds["plain"],
        "differences": differences,
        "results": rows,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
