"""Frozen embeddings: what a model says of every item of a dataset, without changing the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contraport._utils.formatting import describe_shape, join_names
from contraport._utils.progress import ProgressBars
from contraport._utils.text_tensors import is_text_batch, is_text_shape
from contraport.data import Batch, Dataset, Views, loader
from contraport.data.streams import Stream
from contraport.encoders import Model
from contraport.encoders.small_text import vectorize_texts
from contraport.errors import UsageError, check
from contraport.seeding import seed_global_generators, torch_seed

RAW_FEATURES = 4_096
"""Images of more numbers than this are shrunk before they count as raw inputs."""

BLOCK = 64
"""How many items pass an encoder together, always: the last bit of a product may depend on the shape of its factors."""

LARGE, FEW = 10_000, 4
"""Of images and series of more numbers a CPU gets few at a time: what lies between two layers then fits its caches, and
the allocator keeps that memory in place of fetching it anew, page by page, for each layer."""


Prepare = Callable[[tuple[Tensor, ...]], Sequence[Tensor]]


class Embeddings(NamedTuple):
    """The frozen embeddings of `n` items, in the order of the dataset, on the CPU."""

    features: Tensor
    """`(n, F)`: the representation, the encoder's output."""
    labels: Tensor | None
    """`(n,)` int64, or none."""


class RawInputs(nn.Module):
    """The items themselves as features `(b, F)`: images in [0, 1], texts by how often they have which words and pieces.

    `side` is what large images are shrunk to, or none.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        large = [shape for shape in shapes if len(shape) == 3 and math.prod(shape) > RAW_FEATURES]
        self.shapes = tuple(shapes)
        self.side = min((int((RAW_FEATURES / shape[0]) ** 0.5) for shape in large), default=None)

    def encode(self, views: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return each view, uint8 or float `(b, ...)`, as rows."""
        return tuple(self._rows(view) for view in views)

    def forward(self, *views: Tensor) -> Tensor:
        """Return all views of each item in one row."""
        return torch.cat(self.encode(views), dim=1)

    def _rows(self, items: Tensor) -> Tensor:
        if is_text_batch(items):
            return vectorize_texts(items, RAW_FEATURES // sum(map(is_text_shape, self.shapes)))
        floats = items.float() / 255 if items.dtype == torch.uint8 else items.float()
        if self.side is not None and items.ndim == 4:
            floats = F.interpolate(floats, size=(self.side, self.side), mode="area")
        return floats.flatten(1)


class LoaderConfig(NamedTuple):
    """How datasets are read: how many items at a time, to which device, by how many processes, and what shows it."""

    batch_size: int = 512
    device: torch.device = torch.device("cpu")
    workers: int | None = None
    bars: ProgressBars = ProgressBars()

    def moved(self, batch: Batch) -> tuple[Tensor, ...]:
        """Return the views of a batch on the device."""
        return tuple([view.to(self.device) for view in batch.views])

    def apply(
        self, function: Callable[..., Tensor], model: nn.Module, views: Prepare, dataset: Dataset, description: str
    ) -> Tensor:
        """Return what a function of views gives for each item, in one tensor on the CPU; it sees them
        `apply_in_blocks`.

        Raises:
            UsageError: `batch_size` is no positive whole number.
        """
        return torch.cat([part for part, _ in self.iterate_batches(function, model, views, dataset, description)])

    def parts(
        self, function: Callable[..., Tensor], model: nn.Module, views: Prepare, dataset: Dataset, description: str
    ) -> Iterator[Tensor]:
        """Yield what `apply` puts together, for as many items as are fetched at a time.

        Raises:
            UsageError: `batch_size` is no positive whole number.
        """
        for part, _ in self.iterate_batches(function, model, views, dataset, description):
            yield part

    def iterate_batches(
        self, function: Callable[..., Tensor], model: nn.Module, views: Prepare, dataset: Dataset, description: str
    ) -> Iterator[tuple[Tensor, Batch]]:
        """Yield what `parts` does, and of which batch it is.

        Raises:
            UsageError: `batch_size` is no positive whole number.
        """
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise UsageError(f"batch_size: expected a positive whole number, got {self.batch_size!r}.")
        # Whole blocks, so that an item has one place in its block whatever is fetched at a time.
        fetched = math.ceil(self.batch_size / BLOCK) * BLOCK
        loaded = loader(dataset, fetched, workers=self.workers)
        total = None if isinstance(dataset, Stream) else math.ceil(len(dataset) / fetched)
        try:
            for batch in self.bars.track(loaded, description, total):
                yield apply_in_blocks(function, self.moved(batch), model=model, views=views).float().cpu(), batch
        finally:
            loaded.close()


def apply_in_blocks(
    function: Callable[..., Tensor], items: Sequence[Tensor], *, model: nn.Module, views: Prepare = tuple
) -> Tensor:
    """Return what a frozen model gives of items, of which it sees `BLOCK` at a time, too few of them over and over.

    On a CPU each block is computed by one thread, of large items `FEW` at a time, and as many blocks at once as torch
    has threads. So what comes of an item, bit for bit, depends neither on how many there are, nor on how many are
    fetched at once, nor on the threads.

    Args:
        function: of the views of a block, by the model.
        items: (n, ...) each.
        model: what the function uses. Where parts of it are not torch's, timm's or ours, or have hooks, one block after
            the other passes it: they may keep something from one part of a pass to the next.
        views: makes the views of a block, one block after the other, as they may be random; default: the items.

    >>> apply_in_blocks(lambda x: x.new_full((len(x), 1), len(x)), [torch.zeros(3, 2)], model=nn.Identity()).flatten()
    tensor([64., 64., 64.])
    """
    blocks = list(zip(*[view.split(BLOCK) for view in items], strict=True))

    @torch.inference_mode()
    def prepared(block: tuple[Tensor, ...]) -> Sequence[Tensor]:
        places = torch.arange(BLOCK, device=block[0].device) % len(block[0])
        return views(tuple(view[places] for view in block))

    @torch.inference_mode()
    def passed(given: Sequence[Tensor]) -> Tensor:
        return function(*given)

    shared = _is_shared(model)

    @torch.inference_mode()
    def passed_on_cpu(given: Sequence[Tensor]) -> Tensor:
        large = any(view.ndim > 2 and view[0].numel() > LARGE for view in given)
        given = [_channels_last(view) if shared else view for view in given]
        parts = zip(*(view.split(FEW if large else BLOCK) for view in given), strict=True)
        return torch.cat([function(*part) for part in parts])

    if items[0].device.type != "cpu":
        parts = [passed(prepared(block)) for block in blocks]
    else:
        threads = torch.get_num_threads()
        try:
            with ThreadPoolExecutor(threads if shared else 1, initializer=_compute_alone) as pool:
                futures: list[Future[Tensor]] = []
                for block in blocks:
                    futures.append(pool.submit(passed_on_cpu, pool.submit(prepared, block).result()))
                parts = [future.result() for future in futures]
        finally:
            torch.set_num_threads(threads)  # for threads to come, which take what was set last
    return torch.cat([part[: len(block[0])] for part, block in zip(parts, blocks, strict=True)])


def _channels_last(view: Tensor) -> Tensor:
    """Return images as convolutions on a CPU are fastest with."""
    return view.contiguous(memory_format=torch.channels_last) if view.ndim == 4 else view


def _compute_alone() -> None:
    """Let torch compute by this thread alone."""
    torch.get_num_threads()  # else the first computation sets what was set last in any thread
    torch.set_num_threads(1)


def _is_shared(model: nn.Module) -> bool:
    """Return whether several threads may use a model at once, as nothing of it keeps anything of a pass."""
    for part in model.modules():
        is_pure = type(part).__module__.partition(".")[0] in ("torch", "torchvision", "timm", "contraport")
        if not is_pure or part._forward_hooks or part._forward_pre_hooks:
            return False
    return True


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
        seed_global_generators(torch_seed("embedding", seed))
        yield


def embed_dataset(
    model: Model,
    dataset: Dataset,
    *,
    views: Views | None = None,
    batch_size: int = 512,
    device: str | torch.device = "cpu",
    workers: int | None = None,
    progress: bool = False,
) -> Embeddings:
    """Embed the plain views of every item; the model is moved to `device`, and no weight and no buffer changes.

    Args:
        model: what embeds.
        dataset: the items.
        views: how views are made of an item; default: an item's views are those that the dataset gives.
        batch_size: items fetched at a time, rounded up to whole blocks of 64, in which they are embedded; it changes no
            number.
        device: where to compute.
        workers: processes that fetch data; default: none for data in memory, else one per core but one.
        progress: show a progress bar on a terminal.

    Raises:
        UsageError: `batch_size` is not positive, the views are not of the model's shapes, or a feature is not finite.

    >>> from contraport.data import load
    >>> features, labels = embed_dataset(Model(shapes=[(1, 8, 8)]), load("digits", "test"))
    >>> features.shape, labels.shape
    (torch.Size([449, 256]), torch.Size([449]))
    """
    views = views or Views(dataset, augment="none")
    check_shapes(model, dataset, views)
    features = represent(
        model, dataset, views, LoaderConfig(batch_size, torch.device(device), workers, ProgressBars(shown=progress))
    )
    return Embeddings(features, dataset.labels)


def embed_batches(model: Model, dataset: Dataset, views: Views, reader: LoaderConfig) -> Iterator[tuple[Tensor, Batch]]:
    """Yield the frozen features ``(b, F)`` of the plain views of some items after the other, and their batch.

    So `embed_dataset` embeds, without keeping all in memory; the caller's random state may change.

    Raises:
        UsageError: the views are not of the model's shapes, or a feature is not finite.
    """
    check_shapes(model, dataset, views)
    model.to(reader.device)
    views.to(reader.device)
    with frozen(model):
        for features, batch in reader.iterate_batches(model, model, views.plain, dataset, f"{dataset.split} items"):
            check_finite(features)
            yield features, batch


@torch.random.fork_rng(devices=[])  # a loader draws a seed for its workers
def represent(
    encoder: nn.Module,
    dataset: Dataset,
    views: Views,
    reader: LoaderConfig,
    name: str = "encoder",
    *,
    prepare: Prepare | None = None,
) -> Tensor:
    """Return the frozen features `(n, F)` of the plain views of every item, or of what `prepare` makes of its views.

    The caller's random state stays as it is.

    Raises:
        UsageError: a feature is not finite.
    """
    encoder.to(reader.device)
    views.to(reader.device)
    with frozen(encoder):
        features = reader.apply(encoder, encoder, prepare or views.plain, dataset, f"{name}: {dataset.split} items")
    check_finite(features)
    return features.clone()  # outside inference mode, so that it may enter a graph


def embed_views(
    encoder: Model | RawInputs,
    dataset: Dataset,
    views: Views,
    reader: LoaderConfig,
    name: str = "encoder",
    *,
    project: bool = False,
    plain: bool = False,
) -> tuple[Tensor, ...]:
    """Return the frozen features of the first two random views of every item, each `(n, F)`; they are always the same.

    With `project` it is what the loss sees of them, `(n, d)`; with `plain` they are all those that the data give.
    """
    encoder.to(reader.device)
    views.to(reader.device)
    takes_any = isinstance(encoder, RawInputs) or len(encoder.towers) == 1
    number = None if plain else 2

    def encode(*given: Tensor) -> Tensor:
        features = encoder.encode(given[:number] if takes_any else given)
        if isinstance(encoder, Model):
            features = encoder.project(features) if project else encoder.represent(features)
        return torch.stack(features[:number], dim=1)

    with seeded(0, reader.device), frozen(encoder):
        made = reader.apply(encode, encoder, views.plain if plain else views, dataset, f"{name}: views")
    return made.unbind(dim=1)


def check_shapes(model: Model, dataset: Dataset, views: Views) -> None:
    """Raise `UsageError` unless the plain views of the items are what the model takes, and there."""
    expected, got = (join_names([*map(describe_shape, shapes)]) for shapes in (model.shapes, views.plain_shapes))
    check(expected == got, f"data: the model takes {expected}, {dataset.name!r} has {got}.")
    if dataset.present is not None:
        lacking = int((~dataset.present[:, list(model.represented)].all(1)).sum())
        check(
            lacking == 0,
            f"data: {lacking} of {len(dataset)} items of {dataset.name!r} lack a view that the representation is made "
            "of; expected a model with a representation that all have, or only items that have it.",
        )


def check_finite(features: Tensor) -> None:
    """Raise `UsageError` unless every feature is a finite number."""
    bad = (~features.isfinite().all(dim=1)).nonzero().flatten().tolist()
    check(
        not bad,
        f"features: {len(bad)} of {len(features)} items have a NaN or infinite feature (the first is item "
        f"{bad[0] if bad else None}); did the training diverge, or does the data hold NaN?",
    )
