"""Builders of untrained runs, models and small data for the tests of evaluation and embedding."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from contraport._utils.files import write_json
from contraport.data import Dataset, from_arrays
from contraport.encoders import Model
from contraport.runs import Run, WritableRun


def make_run(path: Path, model: Model, **config: Any) -> Run:
    """Write the run folder of a finished training, without training."""
    run = WritableRun.create(
        path, {"data": "digits", "objective": "nt-xent", "seed": 0, "augment": "standard"} | config
    )
    run.append_metrics({"step": 1, "loss": 2.0, "temperature": 0.3, "seconds": 1.0})
    model.save_pretrained(run.model_path)
    write_json(run.trained_path, {"epochs": run.settings().epochs})
    return run


def build_image_model(seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model("small-cnn", [(1, 8, 8)])


def build_vector_model() -> Model:
    torch.manual_seed(0)
    return Model("mlp", [(6,)])


def build_vectors(items: int, classes: int | None) -> Any:
    generator = np.random.default_rng(items)
    labels = None if classes is None else np.arange(items) % classes
    return from_arrays(generator.normal(size=(items, 6)).astype(np.float32), labels=labels)


def build_views(items: int, *shapes: tuple[int, ...], integers: bool = False) -> Dataset:
    """Build items of three classes with views of these shapes; the class shifts every number of a view."""
    generator, labels = np.random.default_rng(items), np.arange(items) % 3
    views = [generator.normal(size=(items, *shape)) + labels.reshape(-1, *[1] * len(shape)) for shape in shapes]
    if integers:
        views = [(view * 30 + 100).clip(0, 255).astype(np.uint8) for view in views]
    return from_arrays(tuple(views), labels=labels)
