"""Kinds of training modules and helpers for their steps, in a module that the processes of some tests can import."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from contraport.catalog import apply_recipe
from contraport.data import Batch, Dataset, LocalBatchOffset, from_arrays
from contraport.distributed import use_local_batch
from contraport.training.components.step_builder import build_objective, build_training_module
from contraport.training.config import Settings
from contraport.training.step.training_module import TrainingModule
from tests.processes import Report

KINDS: dict[str, dict[str, Any]] = {
    "in-batch": {},
    "queue": {"recipe": "moco", "queue_size": 10},
    "student-queue": {"negatives": "queue", "queue_size": 10},
    "bank": {"recipe": "cmc-nce", "bank_negatives": 8},
    "byol": {"recipe": "byol"},
    "simsiam": {"recipe": "simsiam"},
    "swav": {"recipe": "swav", "prototypes": 6},
    "predictive": {"recipe": "predictive"},
    "three views": {"views": 3, "recipe": "moco-v3"},
    "neighbors": {"target": "neighbors:k=3"},
    "balanced over the data": {"constraint": "data-balanced:momentum=0.3"},
    "three views balanced over the data": {"views": 3, "constraint": "data-balanced:momentum=0.3"},
    "labels and a queue": {"target": "labels", "negatives": "queue", "queue_size": 10},
    "nested and a queue": {"matryoshka": "8:1,3:0.5", "negatives": "queue", "queue_size": 10},
    "nested, by prototypes": {"matryoshka": [8, 3], "recipe": "swav", "prototypes": 6},
    "nested, with averages": {"matryoshka": [8, 3], "recipe": "cmc-nce", "bank_negatives": 8},
}

WEIGHTED: dict[str, dict[str, Any]] = {
    "weights": {},
    "weights and a queue": {"negatives": "queue", "queue_size": 10},
    "balanced by weights": {"constraint": "balanced:marginals=weights", "target": "labels"},
}


def build_data(*, views: int = 1) -> Dataset:
    random = np.random.default_rng(0)
    return from_arrays(
        tuple(random.normal(size=(40, 5 + view)) for view in range(views)), labels=random.integers(0, 3, 40)
    )


def build_data_with_missing_views(*, equal: bool = False) -> Dataset:
    """Build items with three views, of equal or different shapes, where about a third of the views are missing."""
    random = np.random.default_rng(0)
    views = tuple(random.normal(size=(40, 5 if equal else 5 + view)) for view in range(3))
    present = random.random((40, 3)) < 0.7
    present[~present.any(1), 0] = True
    return from_arrays(views, labels=random.integers(0, 3, 40), present=present)


def add_weights(dataset: Dataset) -> Dataset:
    return dataset.replace_fields(weights=torch.arange(len(dataset)) % 4 + 0.5)


def build_module(dataset: Dataset, **options: Any) -> TrainingModule:
    settings = Settings(**{"projection": 8, "epochs": 5, **apply_recipe(options)})
    return build_training_module(settings, dataset, build_objective(settings), steps_per_epoch=4)


def get_gradients(module: TrainingModule) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def take_steps(module: TrainingModule, batches: list[Batch], *, first: int = 0) -> list[float]:
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for step, batch in enumerate(batches, first):
        loss = module(batch, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        module.after_step(step)
        losses.append(loss.item())
    return losses


def build_batches(dataset: Dataset, count: int, size: int = 8) -> list[Batch]:
    return [dataset.__getitems__([(size * k + i) % 40 for i in range(size)]) for k in range(count)]


def compute_process_results(dataset: Dataset, options: dict[str, Any], rank: int, processes: int) -> dict[str, Tensor]:
    """Run two steps on the share of a process; return averaged gradients and the buffers of the comparison."""
    module = build_module(dataset, **options)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm1d):
            part.eval()  # batch statistics of several processes have tests of their own
    result = {}
    for step, batch in enumerate(build_batches(dataset, 2)):
        own = slice(rank * 8 // processes, (rank + 1) * 8 // processes)
        present, weights = (None if known is None else known[own] for known in (batch.present, batch.weights))
        views = tuple(view[own] for view in batch.views)
        share = Batch(views, batch.labels[own], None, batch.ids[own], present, weights)
        module.zero_grad()
        module(share, step, 0, LocalBatchOffset(own.start, 8)).backward()
        for name, gradient in get_gradients(module).items():
            if processes > 1:
                dist.all_reduce(gradient)
            result[f"{step} {name}"] = gradient / processes
        module.after_step(step)
    return result | {name: value.clone() for name, value in module.named_buffers() if "comparison" in name}


def compare_steps(rank: int, report: Report) -> None:
    compare_kinds(build_data(), KINDS, rank, report)


def compare_weights(rank: int, report: Report) -> None:
    compare_kinds(add_weights(build_data()), WEIGHTED, rank, report)


def compare_missing_views(rank: int, report: Report) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "in-batch": {}, "all at once": {"objective": "cmc"}, "byol": {"recipe": "byol"}, "chunks": {"cache_chunk": 4},
    }  # fmt: skip
    compare_kinds(build_data_with_missing_views(), kinds, rank, report)


def compare_kinds(dataset: Dataset, kinds: dict[str, dict[str, Any]], rank: int, report: Report) -> None:
    for kind, options in kinds.items():
        with use_local_batch():
            expected = compute_process_results(dataset, options, 0, 1)
        result = compute_process_results(dataset, options, rank, 2)
        if result.keys() != expected.keys():
            report((kind, "names"))
        for name, value in expected.items():
            if not torch.allclose(result[name], value, rtol=1e-4, atol=1e-5, equal_nan=True):
                report((kind, rank, name, float((result[name] - value).abs().max())))
