"""Small batches with stored potentials: `DataBalanced` at 32 and 64 items beside `Balanced` at 1,024.

An MLP is trained on random views of 2,048 images of Fashion-MNIST, for the same number of epochs, or of steps.
Learning rates grow with the root of the batch size. Printed and written, per seed: the accuracy of 20 nearest neighbors
and of a linear probe on test images, the value of the objective on the plan of all training images, and the processor
time of the training. Also, for one trained encoder held fixed: the cosine between the gradient on the plan of all
images and the mean gradient of batches, that is their bias, and the mean cosine of single batches.

    python -m benchmarks.data_balanced [--seeds 3] [--epochs 12]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import contraport as cp
from benchmarks.engine import machine
from contraport.data import load

TRAIN_ITEMS, TEST_ITEMS = 2_048, 2_000
TEMPERATURE, BASE_RATE = 0.2, 2e-3
ROWS = {
    "rows, 64": (cp.Rows(), 64),
    "balanced, 32": (cp.Balanced(5), 32),
    "balanced, 64": (cp.Balanced(5), 64),
    "balanced, 1,024, equal epochs": (cp.Balanced(5), 1_024),
    "balanced, 1,024, steps as with 64": (cp.Balanced(5), 1_024),
    "data-balanced, 32": (0.5, 32),
    "data-balanced, 64": (0.5, 64),
    "data-balanced, 64, momentum .9": (0.9, 64),
}
GRADIENT_SIZES = (32, 64, 1_024)


def load_images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return training images, (n, 1, 28, 28) from 0 to 1, and labels, then those of the test."""
    parts: list[Tensor] = []
    for split, number in (("train", TRAIN_ITEMS), ("test", TEST_ITEMS)):
        batch = load("fashion-mnist", split=split).__getitems__(list(range(number)))
        assert batch.labels is not None
        parts += [batch.views[0].float() / 255, batch.labels]
    return parts[0], parts[1], parts[2], parts[3]


def random_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image by up to an eighth of its side, scale its brightness, and add noise."""
    n, _, height, width = images.shape
    most = height // 8
    shifts = torch.randint(-most, most + 1, (2, n), generator=generator)
    rows = (torch.arange(height)[None] + shifts[0][:, None]).clamp(0, height - 1)
    columns = (torch.arange(width)[None] + shifts[1][:, None]).clamp(0, width - 1)
    shifted = images[torch.arange(n)[:, None, None], 0, rows[:, :, None], columns[:, None, :]]
    bright = 0.6 + 0.8 * torch.rand(n, 1, 1, generator=generator)
    return (shifted * bright + 0.2 * torch.randn(shifted.shape, generator=generator)).flatten(1)


def build(constraint: cp.objectives.Constraint | float, items: int) -> cp.Objective:
    if isinstance(constraint, float):
        constraint = cp.DataBalanced(items, constraint)
    return cp.Objective(cp.Joint(), cp.Gibbs("cosine", TEMPERATURE), constraint, cp.Pairs(), cp.KL())


def build_encoder(seed: int) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(seed)
    encoder = nn.Sequential(nn.Linear(784, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
    return encoder, nn.Linear(128, 64)


def batches(items: int, size: int, epochs: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        yield from torch.randperm(items, generator=generator).split(size)


def train(
    row: str, data: tuple[Tensor, Tensor, Tensor, Tensor], epochs: int, seed: int
) -> tuple[nn.Module, dict[str, float]]:
    """Train one encoder, and return it, head included, and its results."""
    constraint, size = ROWS[row]
    images, labels, test, test_labels = data
    encoder, head = build_encoder(seed)
    loss = build(constraint, len(images))
    epochs = epochs * size // 64 if "steps as" in row else epochs
    rate = BASE_RATE * (size / 64) ** 0.5
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(images) // size))
    generator, begin = torch.Generator().manual_seed(seed), time.process_time()
    for ids in batches(len(images), size, epochs, seed):
        value = loss(*(head(encoder(random_view(images[ids], generator))) for _ in range(2)), ids=ids)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - begin
    encoder.eval()
    with torch.no_grad():
        features = [F.normalize(encoder(one.flatten(1))).numpy() for one in (images, test)]
        views = [head(encoder(random_view(images, torch.Generator().manual_seed(99)))) for _ in range(2)]
        whole = build(cp.Balanced(20), len(images))(*views).item()
    neighbors = KNeighborsClassifier(20, metric="cosine").fit(features[0], labels)
    probe = LogisticRegression(C=10, max_iter=200).fit(features[0], labels)
    return nn.Sequential(encoder, head), {
        "knn": float(neighbors.score(features[1], test_labels)),
        "probe": float(probe.score(features[1], test_labels)),
        "whole-data objective": whole,
        "processor seconds": seconds,
    }


def compare_gradients(images: Tensor, encoder: nn.Module) -> dict[str, dict[str, float]]:
    """Return by row the cosines of mean and single gradients of batches with that on the plan of all images."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        z = [encoder(random_view(images, generator)) for _ in range(2)]

    def gradient(loss: cp.Objective, ids: Tensor) -> Tensor:
        leaves = [view[ids].requires_grad_() for view in z]
        slopes = torch.autograd.grad(loss(*leaves, ids=ids), leaves)
        # As all views are constants, the gradient of an encoder's weights is a linear map of this one.
        full = [torch.zeros_like(view).index_copy(0, ids, slope) for view, slope in zip(z, slopes, strict=True)]
        return torch.cat(full).flatten()

    everything = torch.arange(len(images))
    target = gradient(build(cp.Balanced(20), len(images)), everything)
    result = {}
    for name, constraint in {
        "balanced": cp.Balanced(5),
        "data-balanced": 0.5,
        "data-balanced, momentum .9": 0.9,
    }.items():
        for size in GRADIENT_SIZES:
            loss = build(constraint, len(images))
            for ids in batches(len(images), size, 0 if name == "balanced" else 10, 1):
                loss(*(view[ids].requires_grad_() for view in z), ids=ids)
            slopes = [gradient(loss, ids) for ids in batches(len(images), size, 4, 2)]
            own = [F.cosine_similarity(s, target * (s != 0), dim=0).item() for s in slopes]
            mean = F.cosine_similarity(torch.stack(slopes).mean(0), target, dim=0).item()
            result[f"{name}, {size:,}"] = {"mean": mean, "single": statistics.mean(own)}
    return result


def main() -> None:
    """Print and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/data_balanced.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load_images()
    encoder, _ = train("balanced, 64", data, options.epochs, 0)
    gradients = compare_gradients(data[0], encoder.eval())
    cosines = Table("row", "mean gradient", "single batches", title="cosine with the gradient on the plan of all")
    for row, values in gradients.items():
        cosines.add_row(row, *(f"{value:.3f}" for value in values.values()))
    Console(width=120).print(cosines)
    results: dict[str, list[dict[str, float]]] = {row: [] for row in ROWS}
    record = {
        "command": f"python -m benchmarks.data_balanced --seeds {options.seeds} --epochs {options.epochs}",
        "machine": machine(),
        "gradients": gradients,
        "results": results,
    }
    for seed in range(options.seeds):
        for row, runs in results.items():
            runs.append(train(row, data, options.epochs, seed)[1])
            options.out.write_text(json.dumps(record, indent=1))
    table = Table("row", "kNN", "probe", "objective on all", "processor seconds")
    for row, runs in results.items():
        cells = [[run[key] for run in runs] for key in runs[0]]
        table.add_row(row, *(f"{statistics.mean(c):.3f} ({min(c):.3f} to {max(c):.3f})" for c in cells))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
