"""Frozen embeddings: what a model says of every item of a dataset, without changing the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from contraport.data import Augment, Batch, Dataset, loader
from contraport.encoders import Model
from contraport.errors import check

RAW_FEATURES = 4_096
"""Images of more numbers than this are shrunk before they count as raw inputs."""


class Embeddings(NamedTuple):
    """The frozen embeddings of `n` items, in the order of the dataset, on the CPU."""

    features: Tensor
    """`(n, F)`: the representation, the encoder's output."""
    projections: Tensor
    """`(n, P)`: the projector's output, which the objective saw."""
    labels: Tensor | None
    """`(n,)` int64, or none."""


class RawInputs(nn.Module):
    """The items themselves as features `(b, F)`, images in [0, 1]; `size` is the side they are shrunk to, or none."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        large = len(shape) == 3 and shape[0] * shape[1] * shape[2] > RAW_FEATURES
        self.size = int((RAW_FEATURES / shape[0]) ** 0.5) if large else None

    def forward(self, items: Tensor) -> Tensor:
        """Return items uint8 or float `(b, ...)` as rows."""
        floats = items.float() / 255 if items.dtype == torch.uint8 else items.float()
        if self.size is not None:
            floats = F.interpolate(floats, size=(self.size, self.size), mode="area")
        return floats.flatten(1)


class Reader(NamedTuple):
    """How datasets are read: in batches of what size, to which device, by how many processes, seen or unseen."""

    batch_size: int = 512
    device: torch.device = torch.device("cpu")
    workers: int | None = None
    progress: bool = False

    def apply(self, function: Callable[[Batch], Tensor], dataset: Dataset, description: str) -> Tensor:
        """Return what a function gives for each batch, in one tensor on the CPU."""
        batches: Iterable[Batch] = loader(dataset, self.batch_size, workers=self.workers)
        if self.progress and Console(stderr=True).is_terminal:
            batches = track(
                batches,
                description,
                total=-(-len(dataset) // self.batch_size),
                console=Console(stderr=True),
                transient=True,
            )
        return torch.cat([function(batch).float().cpu() for batch in batches])


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Hold a model in evaluation mode without gradients, and give every module its own training flag back."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module, flag in training:
            module.training = flag


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators for the block, and leave the caller's as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def embed_dataset(
    model: Model,
    dataset: Dataset,
    *,
    batch_size: int = 512,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: bool = False,
) -> Embeddings:
    """Embed the first view of every item; the model is moved to `device`, and no weight and no buffer changes.

    Raises:
        UsageError: `batch_size` is not positive, the items are not of the model's shape, or a feature is not finite.

    >>> from contraport.data import load
    >>> model = Model("small-cnn", (1, 8, 8))
    >>> features, projections, labels = embed_dataset(model, load("digits", "test"))
    >>> features.shape, projections.shape, labels.shape
    (torch.Size([449, 256]), torch.Size([449, 128]), torch.Size([449]))
    """
    check_shape(model, dataset)
    reader = Reader(batch_size, torch.device(device), workers, progress)
    features = represent(model, dataset, reader)
    with frozen(model):
        parts = [model.project(part.to(reader.device)).cpu() for part in features.split(batch_size)]
    return Embeddings(features, torch.cat(parts), dataset.labels)


def represent(encoder: nn.Module, dataset: Dataset, reader: Reader, name: str = "encoder") -> Tensor:
    """Return the frozen features `(n, F)` of the first view of every item.

    Raises:
        UsageError: a feature is not finite.
    """
    encoder.to(reader.device)
    with frozen(encoder):
        features = reader.apply(
            lambda batch: encoder(batch.views[0].to(reader.device)), dataset, f"{name}: {dataset.split} items"
        )
    check_finite(features)
    return features.clone()  # outside inference mode, so that it may enter a graph


def represent_views(
    encoder: nn.Module, dataset: Dataset, augment: Augment, reader: Reader, name: str = "encoder"
) -> tuple[Tensor, Tensor]:
    """Return the frozen features of two augmented views of every item, each `(n, F)`; the views are always the same."""
    encoder.to(reader.device)
    augment.to(reader.device)

    def pair(batch: Batch) -> Tensor:
        first, second = augment(tuple(view.to(reader.device) for view in batch.views))[:2]
        return torch.stack([encoder(first), encoder(second)], dim=1)

    with seeded(0, reader.device), frozen(encoder):
        both = reader.apply(pair, dataset, f"{name}: two views")
    return both[:, 0], both[:, 1]


def check_shape(model: Model, dataset: Dataset) -> None:
    """Raise `UsageError` unless the items are what the model takes."""
    expected, got = tuple(model.config["shape"]), tuple(dataset.shapes[0])
    check(expected == got, f"data: the model takes items of shape {expected}, {dataset.name!r} has {got}.")


def check_finite(features: Tensor) -> None:
    """Raise `UsageError` unless every feature is a finite number."""
    bad = (~features.isfinite().all(dim=1)).nonzero().flatten().tolist()
    check(
        not bad,
        f"features: {len(bad)} of {len(features)} items have a NaN or infinite feature (the first is item "
        f"{bad[0] if bad else None}); did the training diverge, or does the data hold NaN?",
    )
