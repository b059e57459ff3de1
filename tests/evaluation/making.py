"""Runs that were never trained, and small data, to evaluate and to embed."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from contraport._utils.files import write_json
from contraport.data import Dataset, from_arrays
from contraport.encoders import Model
from contraport.runs import Run, RunFolder


def make_run(path: Path, model: Model, **config: Any) -> Run:
    """Write a run folder as a training leaves it, without training."""
    run = RunFolder.create(path, {"data": "digits", "objective": "nt-xent", "seed": 0, "augment": "standard"} | config)
    run.append_metrics({"step": 1, "loss": 2.0, "temperature": 0.3, "seconds": 1.0})
    model.save_pretrained(run.model_path)
    write_json(run.trained_path, {"epochs": run.settings().epochs})
    return run


def image_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model("small-cnn", [(1, 8, 8)])


def vector_model() -> Model:
    torch.manual_seed(0)
    return Model("mlp", [(6,)])


def vectors(items: int, classes: int | None) -> Any:
    generator = np.random.default_rng(items)
    labels = None if classes is None else np.arange(items) % classes
    return from_arrays(generator.normal(size=(items, 6)).astype(np.float32), labels=labels)


def several(items: int, *shapes: tuple[int, ...], integers: bool = False) -> Dataset:
    """Return views of given shapes of items of three classes, which shift every number of a view."""
    generator, labels = np.random.default_rng(items), np.arange(items) % 3
    views = [generator.normal(size=(items, *shape)) + labels.reshape(-1, *[1] * len(shape)) for shape in shapes]
    if integers:
        views = [(view * 30 + 100).clip(0, 255).astype(np.uint8) for view in views]
    return from_arrays(tuple(views), labels=labels)
