"""Outliers in a folder of images with one view per item: is the mass that unbalanced transport gives up a good score?

Of 2,000 images of Fashion-MNIST 5% are replaced by outliers: digits, noise, or shuffled pixels. An encoder is trained
on random views of all of them. Each item is then scored by the mass that it keeps in the unbalanced plan between two
random views of all items, by how far its two views are apart, by the distance to its nearest neighbors, and by an
isolation forest on the features and on the pixels. Printed and written: the AUROC of each score.

    python -m benchmarks.outliers [--seeds 3] [--epochs 15]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

import contraport
from benchmarks.engine import machine
from contraport import Gibbs
from contraport.data import Dataset, Views, from_arrays, load
from contraport.encoders import Model
from contraport.objectives import Unbalanced

ITEMS, SHARE, DRAWS = 2_000, 0.05, 4
KINDS = ("digits", "noise", "shuffled pixels")
RELAXATIONS = (0.05, 0.2, 1.0)


def make_images(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images, uint8 (n, 28, 28), and which of them are outliers."""
    random = np.random.default_rng(seed)
    dataset = load("fashion-mnist")
    positions = random.choice(len(dataset), size=ITEMS, replace=False)
    images = dataset.__getitems__(positions.tolist()).views[0][:, 0].numpy().copy()
    is_outlier = np.arange(ITEMS) < SHARE * ITEMS
    number = int(is_outlier.sum())
    if kind == "digits":
        digits = load("digits")
        small = digits.__getitems__(random.choice(len(digits), size=number, replace=False).tolist()).views[0].float()
        images[is_outlier] = F.interpolate(small, size=(28, 28), mode="bilinear").round().byte()[:, 0].numpy()
    elif kind == "noise":
        images[is_outlier] = random.integers(0, 256, size=(number, 28, 28), dtype=np.uint8)
    else:
        flat = images[is_outlier].reshape(number, -1)
        images[is_outlier] = random.permuted(flat, axis=1).reshape(number, 28, 28)
    order = random.permutation(ITEMS)
    return images[order], is_outlier[order]


@torch.no_grad()
def embed_random_views(model: Model, data: Dataset, draw: int) -> tuple[Tensor, Tensor]:
    """Return features of two random views of every item, (n, F) each."""
    views, parts = Views(data), []
    torch.manual_seed(draw)
    for positions in torch.arange(len(data)).split(256):
        batch = data.__getitems__(positions.tolist())
        parts.append(torch.stack(list(model.eval().encode(views(batch.views)))))
    first, second = torch.cat(parts, dim=1)
    return first, second


def score_items(views: list[tuple[Tensor, Tensor]], features: np.ndarray, pixels: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of all items by name; high for outliers."""
    scores: dict[str, np.ndarray] = {}
    for relaxation in RELAXATIONS:
        masses = []
        for z0, z1 in views:
            result = contraport.transport(z0, z1, Gibbs("cosine", 0.1), Unbalanced(relaxation, iterations=50))
            masses.append(result.plan.log_row_mass() + result.plan.log_column_mass())
        scores[f"unbalanced mass, relaxation {relaxation}"] = -torch.stack(masses).mean(0).numpy()
    unit = [(F.normalize(z0, dim=1), F.normalize(z1, dim=1)) for z0, z1 in views]
    scores["distance of two views"] = -torch.stack([(a * b).sum(1) for a, b in unit]).mean(0).numpy()
    log_probabilities = [(a @ b.T / 0.1).log_softmax(1).diagonal() for a, b in unit]
    scores["InfoNCE loss of the item"] = -torch.stack(log_probabilities).mean(0).numpy()
    distances = NearestNeighbors(n_neighbors=11).fit(features).kneighbors(features)[0]
    scores["distance of 10 neighbors"] = distances[:, 1:].mean(1)
    for name, values in (("features", features), ("pixels", pixels)):
        scores[f"isolation forest, {name}"] = (
            -IsolationForest(random_state=0, n_jobs=1).fit(values).score_samples(values)
        )
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/outliers.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, list[float]]] = {}
    for kind in KINDS:
        for seed in range(options.seeds):
            images, is_outlier = make_images(kind, seed)
            data = from_arrays(images, name=f"images with {kind}")
            with tempfile.TemporaryDirectory() as folder:
                run = contraport.train(
                    data=data, epochs=options.epochs, batch_size=256, seed=seed, encoder="small-cnn",
                    out=f"{folder}/run", device="cpu", threads=1, progress=False,
                )  # fmt: skip
                model = run.model()
            draws = [embed_random_views(model, data, draw) for draw in range(DRAWS)]
            features = F.normalize(torch.stack([z for pair in draws for z in pair]).mean(0), dim=1).numpy()
            for name, score in score_items(draws, features, images.reshape(ITEMS, -1) / 255).items():
                value = float(roc_auc_score(is_outlier, score))
                results.setdefault(name, {}).setdefault(kind, []).append(value)
            print(f"{kind}, seed {seed}: done", flush=True)
    table = Table("score", *KINDS)
    for name, result in results.items():
        table.add_row(name, *(f"{statistics.mean(result[kind]):.3f}" for kind in KINDS))
    Console(width=120).print(table)
    command = f"python -m benchmarks.outliers --seeds {options.seeds} --epochs {options.epochs}"
    options.out.write_text(json.dumps({"command": command, "machine": machine(), "auroc": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
