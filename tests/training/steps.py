"""The kinds of pipelines and their steps, in a module that the processes of some tests can import."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from contraport.data import Batch, Dataset, Share, from_arrays
from contraport.distributed import local
from contraport.runs.settings import Settings
from contraport.training.build import build_objective, build_pipeline
from contraport.training.recipes import resolve
from contraport.training.step.pipeline import Pipeline

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
}


def data(*, views: int = 1) -> Dataset:
    random = np.random.default_rng(0)
    return from_arrays(
        tuple(random.normal(size=(40, 5 + view)) for view in range(views)), labels=random.integers(0, 3, 40)
    )


def pipeline_of(dataset: Dataset, **chosen: Any) -> Pipeline:
    settings = Settings(**{"projection": 8, "epochs": 5, **resolve(chosen)})
    return build_pipeline(settings, dataset, build_objective(settings), epoch=4)


def gradients(pipeline: Pipeline) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in pipeline.named_parameters() if p.grad is not None}


def take_steps(pipeline: Pipeline, batches: list[Batch], *, first: int = 0) -> list[float]:
    optimizer = torch.optim.SGD([p for p in pipeline.parameters() if p.requires_grad], lr=0.1)
    losses = []
    for step, batch in enumerate(batches, first):
        loss = pipeline(batch, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        pipeline.after_step(step)
        losses.append(loss.item())
    return losses


def some_batches(dataset: Dataset, count: int, size: int = 8) -> list[Batch]:
    return [dataset.__getitems__([(size * k + i) % 40 for i in range(size)]) for k in range(count)]


def shared_results(kind: str, rank: int, processes: int) -> dict[str, Tensor]:
    """Two steps of one process's share of each batch: averaged gradients, then what is kept."""
    dataset = data()
    pipeline = pipeline_of(dataset, **KINDS[kind])
    for module in pipeline.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()  # by the batch it is another's business: shared batch norm
    found = {}
    for step, batch in enumerate(some_batches(dataset, 2)):
        own = slice(rank * 8 // processes, (rank + 1) * 8 // processes)
        held = Batch(tuple(view[own] for view in batch.views), batch.labels[own], None, batch.ids[own])
        pipeline.zero_grad()
        pipeline(held, step, 0, Share(own.start, 8)).backward()
        for name, gradient in gradients(pipeline).items():
            if processes > 1:
                dist.all_reduce(gradient)
            found[f"{step} {name}"] = gradient / processes
        pipeline.after_step(step)
    return found | {name: value.clone() for name, value in pipeline.named_buffers() if "comparison" in name}


def compare_steps(rank: int, address: str, failures: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for kind in KINDS:
        with local():
            wanted = shared_results(kind, 0, 1)
        found = shared_results(kind, rank, 2)
        if found.keys() != wanted.keys():
            failures.put((kind, "names"))
        for name, value in wanted.items():
            if not torch.allclose(found[name], value, rtol=1e-4, atol=1e-5, equal_nan=True):
                failures.put((kind, rank, name, float((found[name] - value).abs().max())))
    dist.destroy_process_group()
    os._exit(0)  # torch now and then aborts in its own teardown, when all is done
