"""Some 250 small gray images: frozen EfficientNet-Lite0, gradients, a self-trained network and raw pixels.

The images are clothes (Fashion-MNIST) and handwritten digits (scikit-learn). Each split draws other images to train on,
and tests on 500 others. EfficientNet-Lite0 sees them at 96 pixels, the other encoders as they are. Printed and
written, per split: the accuracy of a linear probe and of the 5 nearest neighbors on raw pixels, on each encoder before
training and after it; then means with 95 % intervals over splits, also of the differences.

    apt-get install dataset-fashion-mnist && pip install 'contraport[weights]'
    python -m benchmarks.gray_images [--items 250] [--splits 3]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.engine import machine
from benchmarks.photos import METRICS, interval
from contraport import evaluate, train
from contraport.data import load

DATA = ("fashion-mnist", "digits")
TEST_ITEMS = 500
WAYS = {
    "lite0": {"encoder": "lite0", "freeze": True, "epochs": 100},
    "gradients, mixup": {"encoder": "gradients", "augment": "mixup", "epochs": 100},
    "small-cnn": {"encoder": "small-cnn", "epochs": 60},
}
SIZES = {"lite0": 96}


def measure(data: str, split: int, items: int) -> dict[str, list[float]]:
    """Train each way on some images, and return the accuracies of all encoders on others, by row."""
    rows: dict[str, list[float]] = {}
    for way, settings in WAYS.items():
        whole = load(data, "train", image_size=SIZES.get(way))
        order = torch.from_numpy(np.random.default_rng(split).permutation(len(whole)))
        own, others = whole.subset(order[:items]), whole.subset(order[items : items + TEST_ITEMS])
        with tempfile.TemporaryDirectory() as folder:
            run = train(
                data=own, out=Path(folder, "run"), batch_size=64, seed=split, threads=1, progress=False, **settings
            )
            found = evaluate(run, data=(own, others), metrics=METRICS, neighbors=5, progress=False)["rows"]
        for name, row in found.items():
            if name != "raw" or way not in SIZES:  # raw pixels as they are
                rows[{"raw": "raw pixels", "trained": way}.get(name, f"{way}: {name}")] = [row[m] for m in METRICS]
        print(data, split, way, {name: [row[m] for m in METRICS] for name, row in found.items()}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=250)
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gray_images.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {"machine": machine(), "items": options.items, "test_items": TEST_ITEMS, "settings": WAYS, "sizes": SIZES}
    for data in DATA:
        splits: dict[str, list[list[float]]] = defaultdict(list)
        for split in range(options.splits):
            for name, values in measure(data, split, options.items).items():
                splits[name].append(values)
        arrays = {name: np.array(values) for name, values in splits.items()}
        pairs = [(one, other) for one in WAYS for other in arrays if one != other]
        arrays |= {f"{one} - {other}": arrays[one] - arrays[other] for one, other in pairs}
        summary = {
            name: {metric: interval(values[:, place]) for place, metric in enumerate(METRICS)}
            for name, values in arrays.items()
        }
        table = Table(data, "linear probe", "kNN")
        for name, row in summary.items():
            table.add_row(name, *(f"{mean:.1f} ± {half:.1f}" for mean, half in row.values()))
        Console(width=120).print(table)
        result[data] = {"splits": dict(splits), "summary": summary}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
