"""Cost of data: waiting for JPEG files, training on frozen features, and embedding, relative to the encoder alone.

Each figure is a ratio of things timed in one run, or a share of the time of one training, as its
`metrics.jsonl` has it.

    python -m benchmarks.data [--images 2048] [--side 96] [--encoder resnet18] [--out benchmarks/results/data.json]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.table import Table

import contraport
from benchmarks.engine import machine
from contraport.data import build_loader, from_arrays, load
from contraport.embedding import FORWARD_BLOCK_ITEMS, apply_in_fixed_blocks, inference_mode
from contraport.runs import Run
from contraport.training.optimization import create_optimizer

BATCH = 128
WAITED = ("each epoch decodes", "decoded once")


def write_photos(folder: Path, images: int, side: int) -> None:
    """Write JPEG files of smooth random colors with noise, which take as long to decode as photographs."""
    random = np.random.default_rng(0)
    for number in range(images):
        small = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        pixels = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC), np.float32)
        noisy = (pixels + random.normal(0, 12, pixels.shape)).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number:05d}.jpg", quality=90)


def measure_waiting(photos: Path, folder: Path, encoder: str, size: int) -> dict[str, float]:
    """Measure the share of time spent waiting for data after the first epoch, decoding in each epoch or once."""
    shares = {}
    for decoding, decoded in zip(WAITED, ("none", None), strict=True):
        run = contraport.train(
            data=photos, encoder=encoder, image_size=size, epochs=3, batch_size=BATCH, log_every=1, decoded=decoded,
            out=folder / decoding.replace(" ", "-"), progress=False,
        )  # fmt: skip
        shares[decoding] = statistics.mean(row["data_wait"] for row in run.metrics_rows() if row["epoch"] > 1)
    return shares


def measure_training(photos: Path, folder: Path, encoder: str, size: int) -> dict[str, float]:
    """Measure the images per second of a full training, and of one on features of the frozen encoder."""
    options = {"data": photos, "encoder": encoder, "image_size": size, "batch_size": BATCH, "log_every": 1}
    options |= {"progress": False}
    full = contraport.train(**options, epochs=2, out=folder / "full")
    head = contraport.train(**options, epochs=40, init=full.path, freeze=True, frozen_draws=1, out=folder / "frozen")
    return {"full": _speed(full, from_epoch=2), "frozen": _speed(head, from_epoch=11)}


def _speed(run: Run, *, from_epoch: int) -> float:
    return statistics.median(row["images_per_second"] for row in run.metrics_rows() if row["epoch"] >= from_epoch)


def measure_head(run: Run) -> float:
    """Measure the images per second of a plain loop over the head, an upper bound of training on frozen features."""
    tower = run.model().tower(0)
    head, features = tower.projector.train(), torch.randn(2 * BATCH, tower.num_features)
    optimizer = create_optimizer(head, optimizer="adamw", lr=1e-3, weight_decay=1e-4)
    partners, itself = torch.arange(2 * BATCH).roll(BATCH), torch.eye(2 * BATCH, dtype=torch.bool)

    def step() -> None:
        z = F.normalize(head(features))
        loss = F.cross_entropy((z @ z.T / 0.5).masked_fill(itself, -torch.inf), partners)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return BATCH / statistics.median(_seconds(step) for _ in range(50))


def measure_embedding(photos: Path, folder: Path, run: Run, size: int, items: int) -> dict[str, float]:
    """Measure the seconds of the encoder alone and of `embed`, on arrays and on files, interleaved."""
    dataset, model = load(photos, image_size=size), run.model()
    (pixels,) = next(iter(build_loader(dataset, len(dataset)))).views
    many = pixels.repeat(math.ceil(items / len(pixels)), 1, 1, 1)[:items]

    def passed(images: torch.Tensor) -> None:
        with inference_mode(model):
            apply_in_fixed_blocks(model, [images], model=model)

    def embed(data: object) -> None:
        contraport.embed(run, data=data, out=folder / "features.npy", overwrite=True, progress=False)

    held = from_arrays(many.numpy())
    parts = {
        "pass over arrays": lambda: passed(many),
        "arrays": lambda: embed(held),
        "pass over files": lambda: passed(pixels),
        "files": lambda: embed(dataset),
    }
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(5):
        for name, part in parts.items():
            seconds[name].append(_seconds(part))
    return {name: min(several) for name, several in seconds.items()}


def _seconds(part: object) -> float:
    start = time.perf_counter()
    part()  # type: ignore[operator]
    return time.perf_counter() - start


def measure(images: int, side: int, size: int, encoder: str, items: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as place:
        folder, photos = Path(place), Path(place) / "photos"
        photos.mkdir()
        write_photos(photos, images, side)
        waited = measure_waiting(photos, folder, encoder, size)
        speeds = measure_training(photos, folder, encoder, size)
        speeds["the head alone"] = measure_head(Run(folder / "full"))
        seconds = measure_embedding(photos, folder, Run(folder / "full"), size, items)
    return {
        "machine": machine(), "images": images, "side": side, "size": size, "encoder": encoder,
        "block": FORWARD_BLOCK_ITEMS,
        "arrays": items, "threads": torch.get_num_threads(), "data_wait": waited, "images_per_second": speeds,
        "seconds_to_embed": seconds,
    }  # fmt: skip


def print_table(result: dict[str, object]) -> None:
    waited, speeds, seconds = result["data_wait"], result["images_per_second"], result["seconds_to_embed"]
    table = Table(
        "what", "figure", title=f"{result['images']} JPEG files, {result['encoder']} at {result['size']} pixels"
    )
    for decoding in WAITED:
        table.add_row(f"waiting for data from the second epoch on, {decoding}", f"{waited[decoding]:.1%}")
    table.add_row("images/s, all weights", f"{speeds['full']:,.0f}")
    table.add_row("images/s, frozen features", f"{speeds['frozen']:,.0f}")
    table.add_row("frozen over full", f"{speeds['frozen'] / speeds['full']:.0f} x")
    table.add_row("the head alone, in a bare loop, over full", f"{speeds['the head alone'] / speeds['full']:.0f} x")
    for what in ("arrays", "files"):
        over = seconds[what] / seconds[f"pass over {what}"]
        table.add_row(f"embed of {what} over the encoder's own pass", f"{over:.2f} x")
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2_048)
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/data.json"))
    parser.add_argument("--items", type=int, default=8_192, help="arrays to embed")
    args = parser.parse_args()
    result = measure(args.images, args.side, args.size, args.encoder, args.items)
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    print_table(result)


if __name__ == "__main__":
    main()
