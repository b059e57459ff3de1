"""Accuracy of unbalanced transport over its settings, compared with NT-Xent and the balanced plan, with and without
wrong pairs.

A two-layer network is trained on two random views of each item (shifted, dimmed, with noise); where a share of the
pairs is wrong, the second view of these items shows another item, the same one throughout. Every objective is tried at
each of its settings on the seeds alike; test items are measured by 20 nearest neighbours and a linear probe on the
network's output. What a killed run had found is kept.

    python -m benchmarks.unbalanced [--seeds 3] [--epochs 30] [--out benchmarks/results/unbalanced.json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor, nn

import contraport
from benchmarks.engine import machine
from contraport.data import load

BATCH = 256
TEMPERATURES = (0.1, 0.2, 0.5)
RELAXATIONS = (0.05, 0.2, 1.0, 5.0)
ITEMS = {"digits": (1348, 449), "fashion-mnist": (3000, 2000)}
"""How many items train and how many are measured."""
MISMATCHED = (0.0, 0.2)


def grid() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each objective with each of its settings."""
    for temperature in TEMPERATURES:
        yield "nt-xent", {"temperature": temperature}
        yield "gca-ince", {"temperature": temperature, "iterations": 10}
        for relaxation, conditional in itertools.product(RELAXATIONS, (False, True)):
            chosen = {"temperature": temperature, "relaxation": relaxation, "conditional": conditional}
            yield "gca-uot", {**chosen, "iterations": 10}
            if not conditional and relaxation in (0.2, 1.0):
                yield "gca-uot", {**chosen, "iterations": 5}
    for extra in ({"marginal_weight": 0.1}, {"rince_weight": 0.2}, {"rince_weight": 1.0}):
        yield "gca-uot", {"temperature": 0.2, "relaxation": 1.0, "iterations": 10, **extra}


def images(name: str) -> tuple[Tensor, np.ndarray, Tensor, np.ndarray]:
    """Return images, (n, height, width) in [0, 1], and labels, to train on and to measure."""
    train, test = ITEMS[name]
    parts: list[Any] = []
    for split, count in (("train", train), ("test", test)):
        batch = load(name, split).__getitems__(list(range(count)))
        assert batch.labels is not None
        parts += [batch.views[0].float().squeeze(1), batch.labels.numpy()]
    scale = float(parts[0].max())
    return parts[0] / scale, parts[1], parts[2] / scale, parts[3]


def view(x: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random view of images, (n, height, width)."""
    reach = max(1, x.shape[1] // 9)
    shifts = torch.randint(-reach, reach + 1, (2, len(x)), generator=generator)
    rows = (torch.arange(x.shape[1]) + shifts[0][:, None]) % x.shape[1]
    columns = (torch.arange(x.shape[2]) + shifts[1][:, None]) % x.shape[2]
    moved = x[torch.arange(len(x))[:, None, None], rows[:, :, None], columns[:, None, :]]
    dim = 0.6 + 0.8 * torch.rand(len(x), 1, 1, generator=generator)
    return moved * dim + 0.15 * torch.randn(x.shape, generator=generator)


def run(name: str, settings: dict[str, Any], data: tuple[Any, ...], mismatched: float, seed: int, epochs: int) -> Any:
    """Train once and return the accuracies on the test items, and the mass of the last plan."""
    train, labels, test, truth = data
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    pixels = train[0].numel()
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(pixels, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128))
    projector = nn.Sequential(nn.ReLU(), nn.Linear(128, 64))
    loss = contraport.objective(name, **settings)
    optimizer = torch.optim.Adam([*encoder.parameters(), *projector.parameters()], 1e-3)
    shown = torch.arange(len(train))
    wrong = torch.randperm(len(train), generator=generator)[: int(mismatched * len(train))]
    shown[wrong] = shown[wrong.roll(1)]
    for _ in range(epochs):
        for batch in torch.randperm(len(train), generator=generator).split(BATCH)[:-1]:
            both = torch.cat([view(train[batch], generator), view(train[shown[batch]], generator)])
            z0, z1 = projector(encoder(both)).chunk(2)
            value = loss(z0, z1)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    encoder.eval()
    with torch.no_grad():
        features, measured = (nn.functional.normalize(encoder(x)).numpy() for x in (train, test))
    probe = LogisticRegression(max_iter=500, C=10).fit(features, labels)
    neighbors = KNeighborsClassifier(20, metric="cosine").fit(features, labels)
    return {
        "probe": 100 * float(probe.score(measured, truth)),
        "knn": 100 * float(neighbors.score(measured, truth)),
        "mass": loss.last_plan_mass,
    }


def main() -> None:
    """Run the grid, print a table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/unbalanced.json"))
    options = parser.parse_args()
    start, before = time.time(), json.loads(options.out.read_text()) if options.out.exists() else {}
    same = all(before.get(key) == getattr(options, key) for key in ("seeds", "epochs"))
    rows, taken = (before["rows"], before["seconds"]) if before and same else ([], 0)
    done = [(row["objective"], row["settings"], row["data"], row["mismatched"]) for row in rows]
    sets = {name: images(name) for name in ITEMS}
    cells = [
        ((name, settings), data, mismatched)
        for data, (name, settings), mismatched in itertools.product(ITEMS, list(grid()), MISMATCHED)
        if (name, settings, data, mismatched) not in done
    ]
    for (name, settings), data, mismatched in track(cells, "settings"):
        result = [run(name, settings, sets[data], mismatched, seed, options.epochs) for seed in range(options.seeds)]
        rows.append({"objective": name, "settings": settings, "data": data, "mismatched": mismatched, "found": result})
        record = {
            "machine": machine(),
            "seeds": options.seeds,
            "epochs": options.epochs,
            "batch": BATCH,
            "items": ITEMS,
        }
        options.out.write_text(
            json.dumps({**record, "seconds": taken + round(time.time() - start), "rows": rows}, indent=1) + "\n"
        )
    for data, mismatched in itertools.product(ITEMS, MISMATCHED):
        table = Table(title=f"{data}, {mismatched:.0%} of the pairs wrong")
        for title in ("objective", "settings", "kNN %", "probe %", "mass"):
            table.add_column(title)
        here = [row for row in rows if (row["data"], row["mismatched"]) == (data, mismatched)]
        for row in sorted(here, key=lambda row: -statistics.mean(v["knn"] for v in row["found"])):
            values = {key: [v[key] for v in row["found"]] for key in ("knn", "probe", "mass")}
            cells_of = [
                f"{statistics.mean(values[key]):.1f} ± {statistics.pstdev(values[key]):.1f}" for key in ("knn", "probe")
            ]
            mass = "" if values["mass"][0] is None else f"{statistics.mean(values['mass']):.2f}"
            table.add_row(row["objective"], ", ".join(f"{k}={v}" for k, v in row["settings"].items()), *cells_of, mass)
        Console().print(table)


if __name__ == "__main__":
    main()
