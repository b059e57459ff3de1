"""Images per second of a training step on Fashion-MNIST, compared with lightly's example loop in the same run.

All loops train the same encoder on two random views of each image with NT-Xent and the same optimiser, in turns, so
that a noisy machine is noisy for all alike. lightly's loop is that of its SimCLR example: torch's DataLoader, its
SimCLRTransform on PIL images, NTXentLoss, one pass of the model per view. It makes the same kinds of changes as ours,
crop, flip, rotation, brightness and contrast, in the same ranges; ours also shift, add noise and erase.

    python -m benchmarks.training [--batch_size 512] [--steps 8] [--repeats 5] [--out benchmarks/results/training.json]
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torch import nn

import contraport
from benchmarks.engine import machine
from contraport.data import Batch, Dataset, build_loader, from_arrays, load
from contraport.encoders import Model
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.config import Settings
from contraport.training.optimization import create_optimizer

TEMPERATURE = 0.5
WARM_UP = 2
COMMAND_ITEMS = 10_240

Measured = dict[str, float]
Loop = Callable[[int], Measured]
"""Takes so many steps and returns the median seconds of a step, and of its parts."""


def fresh_model(images: Dataset) -> Model:
    torch.manual_seed(0)
    mean, std = images.mean_and_std()
    return Model("small-cnn", images.shapes, mean=[mean], std=[std])


def timed_steps(batches: Iterator[object], step: Callable[[object], None], steps: int) -> Measured:
    """Time steps after the warm-up."""
    waits, totals = [], []
    for _ in range(WARM_UP + steps):
        start = time.perf_counter()
        batch = next(batches)
        waits.append(time.perf_counter() - start)
        step(batch)
        totals.append(time.perf_counter() - start)
    return {"step": statistics.median(totals[WARM_UP:]), "data": statistics.median(waits[WARM_UP:])}


def ours(images: Dataset, batch_size: int) -> Loop:
    """Time the steps of `contraport.train`: loader, module and optimizer."""
    settings = Settings(encoder="small-cnn", temperature=TEMPERATURE)
    pipeline = build_training_module(settings, images, build_objective(settings), steps_per_epoch=1)
    optimizer = create_optimizer(pipeline, optimizer="sgd", lr=0.06, weight_decay=0)
    count = iter(range(1 << 30))

    def step(batch: Batch) -> None:
        number = next(count)
        loss = pipeline(batch, number)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pipeline.after_step(number)

    def parts() -> Measured:
        """Seconds of making the views, and of the objective forward and backward."""
        batch = images.__getitems__(list(range(batch_size)))
        z = torch.randn(2, batch_size, 128, requires_grad=True)
        start = time.perf_counter()
        pipeline.views(batch.views)
        middle = time.perf_counter()
        pipeline.objective(z[0], z[1]).backward()
        return {"views": middle - start, "objective": time.perf_counter() - middle}

    def loop(steps: int) -> Measured:
        batches = iter(build_loader(images, batch_size, shuffle=True, seed=next(count), drop_last=True))
        measured = timed_steps(batches, step, steps)
        apart = [parts() for _ in range(WARM_UP + steps)][WARM_UP:]
        return measured | {name: statistics.median(part[name] for part in apart) for name in apart[0]}

    return loop


class Pictures(torch.utils.data.Dataset):
    """Dataset with two random views of each image, transformed one PIL image at a time as in torchvision."""

    def __init__(self, images: np.ndarray, transform: Callable[[Image.Image], list[torch.Tensor]]) -> None:
        self.images = images
        self.transform = transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> list[torch.Tensor]:
        return self.transform(Image.fromarray(self.images[position]))


def lightly(images: Dataset, batch_size: int, num_workers: int) -> Loop:
    """Time the loop of lightly's SimCLR example."""
    from lightly.loss import NTXentLoss
    from lightly.transforms import SimCLRTransform

    transform = SimCLRTransform(
        input_size=28, cj_prob=1.0, cj_bright=0.4, cj_contrast=0.4, cj_sat=0.0, cj_hue=0.0, min_scale=0.7,
        random_gray_scale=0.0, gaussian_blur=0.0, rr_prob=1.0, rr_degrees=15, normalize=None,
    )  # fmt: skip
    tower = fresh_model(images).tower(0)
    model = nn.Sequential(tower, tower.projector)
    criterion = NTXentLoss(temperature=TEMPERATURE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.9, nesterov=True)

    def step(views: list[torch.Tensor]) -> None:
        loss = criterion(model(views[0]), model(views[1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def loop(steps: int) -> Measured:
        # Workers of its own for each turn, so that none works while another loop is timed; their start is not timed,
        # and what they fetched ahead meanwhile has to be used up before the clock counts.
        pictures = Pictures(images.store.fetch_views(torch.arange(len(images)))[0][:, 0].numpy(), transform)
        batches = iter(
            torch.utils.data.DataLoader(pictures, batch_size, shuffle=True, drop_last=True, num_workers=num_workers)
        )
        for _ in range(2 * num_workers):
            step(next(batches))
        measured = timed_steps(batches, step, steps)
        del batches
        gc.collect()
        return measured

    return loop


def command(images: Dataset, batch_size: int) -> Measured:
    """Read the speed that `contraport.train` writes to `metrics.jsonl`, with checkpoints and logging."""
    some = images.__getitems__(list(range(COMMAND_ITEMS)))
    data = from_arrays(some.views, flips=True, name="fashion-mnist")
    with tempfile.TemporaryDirectory() as folder:
        run = contraport.train(
            data=data, temperature=TEMPERATURE, optimizer="sgd", epochs=3, batch_size=batch_size, out=folder + "/run",
            progress=False,
        )  # fmt: skip
        rows = run.metrics_rows()[1:]
    return {
        "step": batch_size / statistics.median(row["images_per_second"] for row in rows),
        "data": batch_size * statistics.median(row["data_wait"] / row["images_per_second"] for row in rows),
    }


def measure(batch_size: int, steps: int, repeats: int) -> dict[str, Measured]:
    images = load("fashion-mnist")
    loops = {"contraport": ours(images, batch_size)} | {
        f"lightly, {num_workers} workers": lightly(images, batch_size, num_workers) for num_workers in (0, 2)
    }
    turns: dict[str, list[Measured]] = {name: [] for name in loops}
    for _ in range(repeats):
        for name, loop in loops.items():
            turns[name].append(loop(steps))
    cases = {
        name: {part: statistics.median(turn[part] for turn in measured) for part in measured[0]}
        for name, measured in turns.items()
    }
    return cases | {"contraport train": command(images, batch_size)}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/training.json"))
    options = parser.parse_args(arguments)
    cases = measure(options.batch_size, options.steps, options.repeats)
    show(options.batch_size, cases)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine(), "batch_size": options.batch_size, "cases": cases}
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(f"written to {options.out}")


def show(batch_size: int, cases: dict[str, Measured]) -> None:
    table = Table(title=f"Fashion-MNIST, small-cnn, batch {batch_size}, {torch.get_num_threads()} threads")
    table.add_column("loop")
    for heading in ("images/s", "ms a step", "data wait", "views", "objective", "times lightly's best"):
        table.add_column(heading, justify="right")
    peer = min(case["step"] for name, case in cases.items() if name.startswith("lightly"))
    for name, case in cases.items():
        shares = [f"{case[part] / case['step']:.1%}" if part in case else "" for part in ("data", "views", "objective")]
        table.add_row(
            name,
            f"{batch_size / case['step']:,.0f}",
            f"{1e3 * case['step']:.0f}",
            *shares,
            f"{peer / case['step']:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
