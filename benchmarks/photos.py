"""Some 350 colored pictures of 12 kinds: frozen EfficientNet-Lite0, gradients and hues, a self-trained network.

The pictures are those of the Debian packages `tuxpaint-stamps-default` (objects, set on white) and `gcompris-qt-data`
(fish, tools, monuments, paintings). Of each kind a fifth, drawn anew for each split, is held out. Printed and written,
per split: the accuracy of a linear probe and of the 5 nearest neighbors on raw pixels, on each encoder before training
and after it, and the seconds of each training; then means with 95% intervals over splits, also of the differences.

    apt-get install tuxpaint-stamps-default gcompris-qt-data && python -m benchmarks.photos [--splits 3]
"""

from __future__ import annotations

import argparse
import io
import json
import struct
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from scipy import stats

from benchmarks.engine import machine
from contraport import evaluate, train

MAX_PER_KIND = 40
SIDE = 256
METRICS = ["linear_probe", "knn"]
STAMPS = {
    "bird": "animals/birds", "mammal": "animals/mammals", "clothes": "clothes", "fruit": "food/fruit",
    "vegetable": "food/vegetables", "flower": "plants/flowers", "vehicle": "vehicles", "road sign": "town/roadsigns",
}  # fmt: skip
RESOURCES = {
    "fish": ("categorization.rcc", "images/fishes/"),
    "tool": ("categorization.rcc", "images/tools/"),
    "monument": ("explore_monuments.rcc", "explore_monuments/resource/"),
    "painting": ("paintings.rcc", "resource/image/"),
}
WAYS = {
    "lite0": {"encoder": "lite0", "freeze": True, "epochs": 100},
    "gradients, mixup": {"encoder": "gradients", "augment": "mixup", "epochs": 100},
    "small-cnn": {"encoder": "small-cnn", "image_size": 64, "epochs": 60},
}


def read_resources(path: Path) -> Iterator[tuple[str, bytes]]:
    """Read the uncompressed files in a Qt resource file, with their paths."""
    data = path.read_bytes()
    version, tree, blobs, names = struct.unpack(">4I", data[4:20])
    entry = 22 if version >= 2 else 14  # later versions add a time

    def walk(number: int, folder: str) -> Iterator[tuple[str, bytes]]:
        at = tree + number * entry
        name_at, flags, first, second = struct.unpack(">IHII", data[at : at + 14])
        (length,) = struct.unpack(">H", data[names + name_at : names + name_at + 2]) if number else (0,)
        name = data[names + name_at + 6 : names + name_at + 6 + 2 * length].decode("utf-16-be")
        if flags & 2:  # a folder: number of children, and the first of them
            for child in range(second, second + first):
                yield from walk(child, f"{folder}{name}/")
        elif flags == 0:
            start = blobs + second + 4
            yield f"{folder}{name}", data[start : start + struct.unpack(">I", data[start - 4 : start])[0]]

    return walk(0, "")


def read_pictures(stamps: Path, resources: Path) -> dict[str, list[Image.Image]]:
    """Return the pictures of each kind, on white, with a longer side of at most `SIDE` pixels."""
    files = {
        kind: [
            path.read_bytes() for path in sorted((stamps / folder).rglob("*.png")) if "cartoon" not in str(path).lower()
        ]
        for kind, folder in STAMPS.items()
    }
    for kind, (file, folder) in RESOURCES.items():
        result = sorted(read_resources(resources / file))
        files[kind] = [data for path, data in result if folder in path and path.endswith(".webp")]
    pictures = {}
    for kind, encoded in files.items():
        chosen = np.random.default_rng(0).permutation(len(encoded))[:MAX_PER_KIND]
        pictures[kind] = [_on_white(encoded[number]) for number in chosen]
    return pictures


def _on_white(encoded: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(encoded)).convert("RGBA")
    image.thumbnail((SIDE, SIDE))
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def write_split(folder: Path, pictures: dict[str, list[Image.Image]], number: int) -> None:
    """Write the pictures as a training and a test split, a folder for each kind."""
    for kind, images in pictures.items():
        for place, chosen in enumerate(np.random.default_rng(number).permutation(len(images))):
            of_kind = folder / ("test" if place < len(images) // 5 else "train") / kind
            of_kind.mkdir(parents=True, exist_ok=True)
            images[chosen].save(of_kind / f"{chosen}.png")


def interval(values: np.ndarray) -> list[float]:
    """Return the mean and the half-width of its 95% interval, in points."""
    half = stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return [round(100 * float(values.mean()), 1), round(100 * float(half), 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--stamps", type=Path, default=Path("/usr/share/tuxpaint/stamps"))
    parser.add_argument("--resources", type=Path, default=Path("/usr/share/gcompris-qt/rcc"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/photos.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    pictures = read_pictures(options.stamps, options.resources)
    rows: dict[str, list[list[float]]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    for split in range(options.splits):
        with tempfile.TemporaryDirectory() as place:
            write_split(Path(place, "photos"), pictures, split)
            for way, settings in WAYS.items():
                started = time.perf_counter()
                run = train(
                    data=Path(place, "photos"), out=Path(place, way.replace(", ", "-")), batch_size=64, seed=split,
                    threads=1, progress=False, **settings,
                )  # fmt: skip
                seconds[way].append(round(time.perf_counter() - started, 1))
                results_of = evaluate(run, metrics=METRICS, neighbors=5, progress=False)["rows"]
                for name, row in results_of.items():
                    label = {"raw": "raw pixels", "trained": way}.get(name, f"{way}: {name}")
                    rows[label][split:] = [[row[metric] for metric in METRICS]]
                print(
                    split,
                    way,
                    seconds[way][-1],
                    {name: [row[m] for m in METRICS] for name, row in results_of.items()},
                    flush=True,
                )
    values = {label: np.array(numbers) for label, numbers in rows.items()}
    differences = {
        f"{one} - {other}": values[one] - values[other]
        for one in values
        for other in values
        if one in WAYS and (other in ("raw pixels", *WAYS) or other.startswith(one)) and one != other
    }
    summary = {
        label: {metric: interval(numbers[:, place]) for place, metric in enumerate(METRICS)}
        for label, numbers in (values | differences).items()
    }
    table = Table("", "linear probe", "kNN")
    for label, row in summary.items():
        table.add_row(label, *(f"{mean:.1f} ± {half:.1f}" for mean, half in row.values()))
    Console(width=120).print(table)
    result = {
        "machine": machine(),
        "pictures": {kind: len(images) for kind, images in pictures.items()},
        "settings": {way: {"batch_size": 64, **settings} for way, settings in WAYS.items()},
        "seconds": dict(seconds),
        "splits": dict(rows),
        "summary": summary,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
